"""What the kernel says of processes that it has killed for lack of memory."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


def kernel_kills() -> int:
    """Return how many processes it has killed so far, in this container or on this machine.

    0 on a system that does not tell.
    """
    for path in _COUNTERS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def why_gone(kills_before: int) -> str:
    """Say why a process may have gone, given what `kernel_kills` was before."""
    if kernel_kills() > kills_before:
        return "the kernel killed a process of this machine for lack of memory"
    return "it was killed, or it crashed"
