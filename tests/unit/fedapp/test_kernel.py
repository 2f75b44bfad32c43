"""The count of the kernel's own kills, on systems that tell it and on others."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cgroups import LIMIT, little_memory

from fedapp import kernel


@pytest.mark.parametrize(
    ("events", "vmstat", "count"),
    [
        ("low 0\noom 9\noom_kill 2\noom_group_kill 7\n", "oom_kill 5\n", 2),
        (None, "pgfault 8\noom_kill 5\n", 5),
        ("low 0\n", "oom_kill 5\n", 5),
        (None, None, 0),
    ],
    ids=["container", "machine", "old container", "other system"],
)
def test_where_it_is_read(
    events: str | None,
    vmstat: str | None,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = tmp_path / "memory.events", tmp_path / "vmstat"
    for path, text in zip(files, (events, vmstat), strict=True):
        if text is not None:
            path.write_text(text)
    monkeypatch.setattr(kernel, "_COUNTERS", files)

    assert kernel.kernel_kills() == count
    assert ("lack of memory" in kernel.why_gone(count - 1)) is True
    assert ("lack of memory" in kernel.why_gone(count)) is False


def test_a_real_kill_is_counted() -> None:
    take = f"import sys; sys.stdin.readline(); print(len(b'x' * {4 * LIMIT}))"
    before = kernel.kernel_kills()
    with (
        little_memory() as group,
        subprocess.Popen(
            [sys.executable, "-c", take], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child,
    ):
        (group / "cgroup.procs").write_text(str(child.pid))
        output, _ = child.communicate(b"go\n", timeout=300)

    assert (output, child.returncode) == (b"", -signal.SIGKILL)
    assert kernel.kernel_kills() > before
    assert "for lack of memory" in kernel.why_gone(before)
