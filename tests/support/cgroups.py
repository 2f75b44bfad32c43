"""A group of processes that the kernel gives little memory: who takes more is killed, for real."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT = 64 * 2**20
_ROOTS = {  # of the second and the first version, and their files for the limits
    Path("/sys/fs/cgroup"): ("memory.max", "memory.swap.max"),
    Path("/sys/fs/cgroup/memory"): ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
}


@contextmanager
def little_memory() -> Iterator[Path]:
    """Yield a new group; a process is put into it by its number in ``cgroup.procs``.

    What a process has already is not counted. Needs the right to make a group.
    """
    for root, (limit, swap) in _ROOTS.items():
        group = root / f"fedapp-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / limit).exists():
                continue
            (group / limit).write_text(str(LIMIT))
            if (group / swap).exists():
                (group / swap).write_text("0" if swap.endswith("max") else str(LIMIT))
            yield group
            return
        finally:
            group.rmdir()
    pytest.skip("limiting the memory of a process is not allowed here")
