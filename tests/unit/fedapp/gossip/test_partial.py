"""What is half received: only right chunks, across restarts and full disks."""

import errno
import os

import pytest

from fedapp.errors import EnvelopeRefused, StoreError
from fedapp.gossip import partial as module
from fedapp.gossip.chunks import Grid, manifest
from fedapp.gossip.partial import Partial

PAYLOAD = os.urandom(70)
GRID = Grid(70, 32)
MANIFEST = manifest(PAYLOAD, GRID)
CHUNKS = [PAYLOAD[:32], PAYLOAD[32:64], PAYLOAD[64:]]


def open_partial(tmp_path):
    return Partial(tmp_path / "x.part", GRID, MANIFEST)


def test_chunk_after_chunk_makes_the_payload(tmp_path):
    partial = open_partial(tmp_path)
    for number, chunk in enumerate(CHUNKS):
        assert partial.offset == 32 * number
        assert not partial.whole
        partial.append(chunk)

    partial.finish(tmp_path / "x.payload")

    assert (tmp_path / "x.payload").read_bytes() == PAYLOAD
    assert not (tmp_path / "x.part").exists()


@pytest.mark.parametrize(
    "wrong",
    [b"", CHUNKS[0][:31], CHUNKS[0] + b"x", CHUNKS[1], b"\0" * 32, PAYLOAD],
    ids=["empty", "short", "long", "another", "zero", "all"],
)
def test_a_wrong_chunk_is_refused_and_costs_nothing(tmp_path, wrong):
    partial = open_partial(tmp_path)

    with pytest.raises(EnvelopeRefused) as caught:
        partial.append(wrong)

    assert caught.value.reason == "wrong-chunk"
    for chunk in CHUNKS:
        partial.append(chunk)
    assert partial.whole


def test_nothing_comes_after_the_end(tmp_path):
    partial = open_partial(tmp_path)
    for chunk in CHUNKS:
        partial.append(chunk)

    with pytest.raises(EnvelopeRefused, match="must have 0 bytes"):
        partial.append(b"x")


def test_what_is_not_whole_does_not_become_a_payload(tmp_path):
    partial = open_partial(tmp_path)
    partial.append(CHUNKS[0])

    with pytest.raises(StoreError, match="lacks 38 bytes"):
        partial.finish(tmp_path / "x.payload")


def test_another_process_goes_on_where_this_one_ended(tmp_path):
    first = open_partial(tmp_path)
    first.append(CHUNKS[0])
    first.append(CHUNKS[1])
    first.close()

    second = open_partial(tmp_path)

    assert second.offset == 64
    second.append(CHUNKS[2])
    second.finish(tmp_path / "x.payload")
    assert (tmp_path / "x.payload").read_bytes() == PAYLOAD


@pytest.mark.parametrize(("damage", "kept"), [(0, 0), (40, 32)])
def test_of_a_damaged_file_only_the_right_chunks_before_count(tmp_path, damage, kept):
    first = open_partial(tmp_path)
    first.append(CHUNKS[0])
    first.append(CHUNKS[1])
    first.close()
    data = bytearray((tmp_path / "x.part").read_bytes())
    data[damage] ^= 1
    (tmp_path / "x.part").write_bytes(data)

    assert open_partial(tmp_path).offset == kept


def test_a_disk_without_room_is_told_before_a_byte_comes(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "posix_fallocate", full)

    with pytest.raises(StoreError, match="No space left on device; make room"):
        open_partial(tmp_path)
    assert not (tmp_path / "x.part").exists()


def test_a_file_system_that_cannot_reserve_is_used_all_the_same(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(module.os, "posix_fallocate", unknown)
    partial = open_partial(tmp_path)
    for chunk in CHUNKS:
        partial.append(chunk)
    partial.finish(tmp_path / "x.payload")

    assert (tmp_path / "x.payload").read_bytes() == PAYLOAD


def test_a_disk_that_fills_up_meanwhile_loses_no_chunk(tmp_path, monkeypatch):
    partial = open_partial(tmp_path)
    partial.append(CHUNKS[0])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "pwrite", full)
    with pytest.raises(StoreError, match="No space left"):
        partial.append(CHUNKS[1])
    monkeypatch.undo()

    for chunk in CHUNKS[1:]:
        partial.append(chunk)
    partial.finish(tmp_path / "x.payload")
    assert (tmp_path / "x.payload").read_bytes() == PAYLOAD


def test_a_disk_that_takes_little_at_a_time_gets_all(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(module.os, "pwrite", lambda h, data, at: real(h, data[:5], at))
    partial = open_partial(tmp_path)
    for chunk in CHUNKS:
        partial.append(chunk)
    partial.finish(tmp_path / "x.payload")

    assert (tmp_path / "x.payload").read_bytes() == PAYLOAD


def test_what_is_discarded_is_gone(tmp_path):
    partial = open_partial(tmp_path)
    partial.append(CHUNKS[0])
    partial.discard()

    assert list(tmp_path.iterdir()) == []
