"""What a process has used, from Linux's own books: memory and processor time."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 10**6


def resident(peak: bool = False) -> float:
    """Return this process's resident memory, or its peak since `reset_peak`, in MB."""
    wanted = "VmHWM" if peak else "VmRSS"
    return memory(Path("/proc/self"), wanted)[f"{wanted}_mb"]


def reset_peak() -> None:
    """Begin to measure the peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(process: Path, *keys: str) -> dict[str, float]:
    """Return lines of a process's status, in MB."""
    found = {}
    for line in (process / "status").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in keys:
            found[f"{key}_mb"] = round(int(rest.split()[0]) * 1024 / MEGABYTE, 2)
    return found


def cpu(process: Path) -> float:
    """Return the processor time of another process, in seconds, to a tick of the clock."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """Processor time of this process with its children, and of the machine, since the boot.

    What `since` tells of others shows whether a time was taken on a busy machine.
    """

    wall: float
    own: float
    machine: float

    @classmethod
    def now(cls) -> Load:
        """Look at the books; children count when they have ended and were waited for."""
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        idle, waiting = int(fields[3]), int(fields[4])
        machine = (sum(map(int, fields)) - idle - waiting) / os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), own, machine)

    def since(self, before: Load) -> dict[str, float]:
        """Return what passed from ``before`` to now."""
        wall, own = self.wall - before.wall, self.own - before.own
        others = max(0.0, self.machine - before.machine - own)
        return {
            "wall_seconds": round(wall, 2),
            "cpu_seconds": round(own, 2),
            "cpu_seconds_of_others": round(others, 2),
            "cores_taken_by_others": round(others / wall, 2),
        }
