import hashlib
import os
import shutil
from pathlib import Path

import pytest

import client_app.model_digest as module
from client_app.model_digest import model_digest
from fedapp.errors import ConfigError


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "b.safetensors").write_bytes(b"second" * 1000)
    (folder / "a.safetensors").write_bytes(b"first" * 1000)
    (folder / "config.json").write_text("{}")
    (folder / "vocab.txt").write_text("[PAD]\npain\n")
    return folder


def oracle(folder):
    lines = [
        f"{name} {hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n"
        for name in ("a.safetensors", "b.safetensors", "config.json", "vocab.txt")
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def count_reads(monkeypatch):
    reads = []
    original = hashlib.file_digest
    monkeypatch.setattr(
        module.hashlib, "file_digest", lambda *args: (reads.append(1), original(*args))[1]
    )
    return reads


def test_it_is_the_digest_of_names_and_contents_wherever_the_folder_is(model, tmp_path):
    first = model_digest(model)
    assert first == oracle(model)
    (model / "README.md").write_text("about it")
    (model / "onnx").mkdir()
    (model / "onnx" / "config.json").write_text("{}")
    shutil.copytree(model, tmp_path / "copy")
    assert model_digest(tmp_path / "copy") == first


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", '{"hidden_act": "relu"}'),
        ("vocab.txt", "[PAD]\nfever\n"),
        ("tokenizer.json", "{}"),
        ("spiece.model", "pieces"),
    ],
)
def test_other_settings_or_another_vocabulary_are_another_model(model, name, content):
    before = model_digest(model)

    (model / name).write_text(content)

    assert model_digest(model) != before


def test_an_unchanged_file_is_read_once(model, monkeypatch):
    reads = count_reads(monkeypatch)
    first = model_digest(model)
    assert len(reads) == 4
    assert model_digest(model) == first
    assert len(reads) == 4


def test_a_file_of_the_same_size_and_time_in_its_place_is_read(model, tmp_path):
    model_digest(model)
    path = model / "a.safetensors"
    before = path.stat()
    other = tmp_path / "other"
    other.write_bytes(b"FIRST" * 1000)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert model_digest(model) == oracle(model)


def test_a_file_changed_in_place_with_its_time_put_back_is_read(model):
    model_digest(model)
    path = model / "a.safetensors"
    before = path.stat()
    path.write_bytes(b"FIRST" * 1000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model_digest(model) == oracle(model)


@pytest.mark.parametrize("note", [b"", b"[]", b"{}", b"\xff", b'{"path": "x", "state": []}'])
def test_a_broken_note_is_ignored(model, tmp_path, note):
    model_digest(model)
    for path in Path(tmp_path / "cache" / "digests").iterdir():
        path.write_bytes(note)
    assert model_digest(model) == oracle(model)


def test_a_read_only_cache_only_costs_time(model, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(module, "write_text", refuse)
    assert model_digest(model) == oracle(model)


def test_a_folder_without_safetensors_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ConfigError, match=r"has no \*\.safetensors file"):
        model_digest(tmp_path)
