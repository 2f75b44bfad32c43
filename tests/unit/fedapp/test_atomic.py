"""An atomic write leaves the old file or the new one, never a mixture or litter."""

import errno
import os
import threading

import pytest

from fedapp import atomic
from fedapp.atomic import write_bytes, write_text


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_is_written_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "model.bin"

    write_bytes(path, b"\x00\xff" * 1000)

    assert path.read_bytes() == b"\x00\xff" * 1000
    assert _names(path.parent) == ["model.bin"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_text_is_written_as_utf8(tmp_path):
    write_text(tmp_path / "note", "Zürich 病院")

    assert (tmp_path / "note").read_bytes() == "Zürich 病院".encode()


@pytest.mark.parametrize("step", ["write", "fsync", "chmod", "replace"])
@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_failure_at_any_step_keeps_the_old_file(tmp_path, monkeypatch, step, failure):
    path = tmp_path / "state.json"
    write_bytes(path, b"old")

    def fail(*_args, **_kwargs):
        raise failure

    if step == "write":
        monkeypatch.setattr(atomic.os, "fdopen", lambda handle, mode: _FullDisk(handle, fail))
    else:
        monkeypatch.setattr(atomic.os, step, fail)
    with pytest.raises(type(failure)):
        write_bytes(path, b"new")
    monkeypatch.undo()

    assert path.read_bytes() == b"old"
    assert _names(tmp_path) == ["state.json"]


class _FullDisk:
    def __init__(self, handle, fail):
        self.handle, self.write = handle, fail

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.handle)


def test_the_content_is_on_disk_before_the_name(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            atomic.os, name, lambda *a, name=name, real=real: (order.append(name), real(*a))[1]
        )

    write_bytes(tmp_path / "state", b"x")

    assert order == ["fsync", "replace", "fsync"]  # file, rename, folder


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "state"
    versions = [bytes([value]) * 200_000 for value in range(20)]
    write_bytes(path, versions[0])
    seen, done = [], threading.Event()

    def read():
        while not done.is_set():
            seen.append(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for version in versions:
        write_bytes(path, version)
    done.set()
    reader.join()

    assert seen
    assert all(content in versions for content in seen)
