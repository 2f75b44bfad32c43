"""The benchmarks' Grid in one process computes what `fedapp run` computes."""

from __future__ import annotations

import json

import pytest
from desk import Desk
from interface import ROOT

from benchmarks.local_grid import run_here

pytestmark = pytest.mark.slow

QUICK = {
    "model.source": "embedded:tiny-encoder",
    "data.max-examples": 60,
    "federation.rounds": 2,
    "train.threads": 1,
}


def test_same_bits_as_fedapp_run(desk: Desk) -> None:
    settings = " ".join(
        f"{key}={json.dumps(value) if isinstance(value, str) else value}"
        for key, value in QUICK.items()
    )
    done = desk.fedapp("run", ROOT, "--name", "there", "-c", settings)
    assert (done.returncode, done.stderr) == (0, "")
    there = json.loads((desk.here / "runs" / "there" / "summary.json").read_text())

    here, rows = run_here(QUICK)

    assert here["adapter_digest"] == there["adapter_digest"]
    assert here["sites"] == there["sites"]
    assert {row["round"] for row in rows} == {1, 2}
