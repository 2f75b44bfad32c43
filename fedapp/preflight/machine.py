"""What the machine has: disk, memory, and the folders of the service."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedapp.config_site import SiteFile
from fedapp.preflight.finding import Finding, Status

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def check_disk(config: SiteFile) -> Finding:
    """Look at the state folder and the room on its disk."""
    place = _existing(config.state)
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            "disk", Status.FAILED, f"{place} is not writable for user {os.geteuid()}",
            "mount a volume there, or chown it",
        )  # fmt: skip
    free = shutil.disk_usage(place).free / 1e9
    detail = f"{free:.1f} GB free for {config.state}"
    if free < config.check.min_disk_gb:
        return Finding(
            "disk", Status.FAILED, f"{detail}, expected {config.check.min_disk_gb:g}", "make room"
        )
    return Finding("disk", Status.OK, detail)


def check_memory(config: SiteFile) -> Finding:
    """Look at the memory that is available to this process."""
    available = available_memory()
    if available is None:
        return Finding("memory", Status.SKIPPED, "this machine does not tell")
    detail = f"{available / 1e9:.1f} GB available"
    if available < config.check.min_memory_gb * 1e9:
        return Finding(
            "memory", Status.FAILED, f"{detail}, expected {config.check.min_memory_gb:g}",
            "end other programs, or raise the container's limit",
        )  # fmt: skip
    return Finding("memory", Status.OK, detail)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return bytes that may be had, by the machine and by the limit of its container."""
    found = []
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        told = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        found += [1024 * int(kib) for kib in told]
    except (OSError, ValueError):
        pass
    for limit, used in _CGROUP_LIMITS:
        try:
            most = int((root / limit.lstrip("/")).read_text())
            found.append(most - int((root / used.lstrip("/")).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return max(0, min(found)) if found else None


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())
