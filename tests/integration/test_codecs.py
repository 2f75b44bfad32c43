"""`fedapp run` with every number format: sizes, nearness to fp32, and what the sites keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desk import Desk
from interface import ROOT

from fedapp.codec import CODECS
from fedapp.peft_format import load_peft

pytestmark = pytest.mark.slow

HOSPITALS = ("Évora", "Köln", "Lille")
QUICK = (
    "method=subspace-reg model.source=embedded:tiny-encoder data.source=d.csv data.sites=3 "
    "federation.rounds=3 federation.local-only=false train.device=cpu train.threads=1"
)


@pytest.fixture(scope="module")
def desk(desk: Desk) -> Desk:
    desk.records(HOSPITALS, 40)
    return desk


@pytest.fixture(scope="module")
def folders(desk: Desk) -> dict[str, Path]:
    return {codec: desk.here / "runs" / codec for codec in CODECS}


@pytest.mark.parametrize("codec", CODECS)
def test_a_run_completes(desk: Desk, codec: str) -> None:
    """The tests below look at what these runs have left."""
    settings = f"{QUICK} federation.codec='{codec}'"
    done = desk.fedapp("run", ROOT, "--name", codec, "-c", settings)

    assert (done.returncode, done.stderr) == (0, "")


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_updates_shrink_and_the_model_goes_down_in_fp32(folders: dict[str, Path]) -> None:
    last = {codec: [r for r in rows(f) if r["site"] is None][-1] for codec, f in folders.items()}

    up = {codec: row["bytes_up"] / last["fp32"]["bytes_up"] for codec, row in last.items()}
    assert up["bf16"] == 0.5
    assert 0.25 < up["int8"] < 0.45, "one byte a number and a scale a row"
    assert len({row["bytes_down"] for row in last.values()}) == 1


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_the_model_is_nearly_that_of_fp32(folders: dict[str, Path], codec: str) -> None:
    exact, short = (load_peft(folders[name] / "adapter") for name in ("fp32", codec))
    for name, pair in exact.pairs.items():
        product, other = pair.b_mr @ pair.a_rn, short.pairs[name]
        difference = np.linalg.norm(product - other.b_mr @ other.a_rn)
        # Adam answers a rounded gradient near zero with a whole step.
        assert 0 < difference < 0.1 * np.linalg.norm(product)
    losses = [
        [row["loss"] for row in rows(folders[name]) if "loss" in row] for name in ("fp32", codec)
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)


def test_sites_keep_their_residuals_in_the_run_folder(folders: dict[str, Path]) -> None:
    assert not (folders["fp32"] / "sites").exists()
    for codec in ("bf16", "int8"):
        kept = sorted((folders[codec] / "sites").rglob("*"))
        names = [path.name for path in kept if path.is_file()]
        assert sorted(set(names)) == [f"round-{n:06d}.safetensors" for n in (1, 2, 3)]
        assert len(names) == 3 * len(HOSPITALS)
        assert {path.stat().st_mode & 0o777 for path in kept if path.is_file()} == {0o600}
        trained = [r for r in rows(folders[codec]) if r.get("split") == "validation"]
        found = [r["state_round"] for r in trained if "state_round" in r]
        assert sorted(found) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
