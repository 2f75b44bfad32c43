"""The identity of a base model: a digest of its weights, its settings and its tokenizer."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from fedapp.atomic import write_text
from fedapp.cache import cache_folder
from fedapp.errors import ConfigError

# Weights, config.json and whatever a tokenizer may be made of: tokenizer.json, vocab.txt,
# merges.txt, spiece.model, added_tokens.json, chat_template.jinja, ... Another vocabulary or
# template is another model.
MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")


def model_digest(folder: Path) -> str:
    """Return the SHA-256 over names and contents of the model files of a folder.

    What lies in subfolders, and files of other kinds such as a README, are not part of it.

    Raises
    ------
    ConfigError
        If there are no ``*.safetensors``.
    """
    files = {path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()}
    if not any(path.suffix == ".safetensors" for path in files):
        raise ConfigError(
            f"the model folder '{folder.name}' has no *.safetensors file; weights in other formats "
            "can run code when they are loaded, so convert them first "
            "(save_pretrained of a current transformers does)"
        )
    sha = hashlib.sha256()
    for path in sorted(files):
        sha.update(f"{path.name} {_file_digest(path)}\n".encode())
    return sha.hexdigest()


def _file_digest(path: Path) -> str:
    """SHA-256 of a file, remembered between processes until the file changes in any way.

    Besides size and modification time the entry holds inode and change time, which copying tools
    cannot set: a file put in the place of another one is always read again.
    """
    real = path.resolve()
    state = _state(real)
    notes = cache_folder() / "digests"
    note = notes / hashlib.sha256(os.fsencode(real)).hexdigest()
    # An unreadable, stale or foreign note means no more than reading the file again.
    with suppress(OSError, ValueError, KeyError, TypeError):
        entry = json.loads(note.read_text(encoding="utf-8"))
        if entry["path"] == str(real) and entry["state"] == state:
            return str(entry["sha256"])
    with real.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if _state(real) == state:  # else it changed while it was read
        with suppress(OSError):  # a read-only cache costs time, not correctness
            write_text(note, json.dumps({"path": str(real), "state": state, "sha256": digest}))
    return digest


def _state(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
