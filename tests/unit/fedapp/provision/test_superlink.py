"""The SuperLink's server is told how long it may wait when it is to end."""

from __future__ import annotations

import runpy
import sys
import types
from pathlib import Path

import pytest
import uvicorn

from fedapp.provision import superlink


def test_calls_in_progress_do_not_hold_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    flower = types.ModuleType("flower_superlink")
    flower.flower_superlink = lambda: uvicorn.run(app="x", workers=1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flwr.superlink.cli.flower_superlink", flower)
    monkeypatch.setattr(uvicorn, "run", lambda **given: seen.append((list(sys.argv), given)))
    monkeypatch.setattr(sys, "argv", ["superlink.py", "flower-superlink", "--host", "x"])

    runpy.run_path(str(Path(superlink.__file__)), run_name="__main__")

    given = {"app": "x", "workers": 1, "timeout_graceful_shutdown": superlink.PATIENCE}
    assert seen == [(["flower-superlink", "--host", "x"], given)]
