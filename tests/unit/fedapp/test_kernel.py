"""The count of the kernel's own kills, on systems that tell it and on others."""

from __future__ import annotations

from pathlib import Path

import pytest

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
