"""What a command that fails must look like from outside, and proof that nothing was lost."""

from __future__ import annotations

import hashlib
from pathlib import Path
from subprocess import CompletedProcess


def assert_one_sentence(done: CompletedProcess[str], code: int, *words: str) -> str:
    """Return the sentence that a command ended with, after checking that it is alone.

    The exit code is ``code``; standard error holds ``error: SENTENCE`` with all of ``words``, at
    most one ``next: ...`` after it, and nothing else; nobody sees a stack trace.
    """
    assert done.returncode == code, done.stdout + done.stderr
    first, *more = done.stderr.splitlines()
    assert first.startswith("error: "), done.stderr
    assert len(more) <= 1, done.stderr
    assert all(line.startswith("next: ") for line in more), done.stderr
    sentence = first.removeprefix("error: ")
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"
    for trace in ("Traceback", 'File "', ".py:"):
        assert trace not in done.stderr + done.stdout, done.stdout + done.stderr
    return sentence


def contents(folder: Path) -> dict[str, str]:
    """Return the digest of every file below ``folder`` by its relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
