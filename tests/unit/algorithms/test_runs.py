"""Whole runs in one process with the tiny encoder: an algorithm's or a site's own memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kill_points import POINTS, Arming

from benchmarks.local_grid import LocalGrid
from fedapp.config import RunConfig
from fedapp.peft_format import load_peft
from fedapp.results import RunFolder
from server_app import app

QUICK = {
    "model.source": "embedded:tiny-encoder",
    "model.max-length": 32,
    "lora.rank": 2,
    "lora.targets": "query",
    "data.max-examples": 20,
    "train.local-epochs": 1,
    "train.threads": 1,
    "train.device": "cpu",
    "federation.rounds": 3,
    "federation.local-only": False,
}
Settings = Callable[..., RunConfig]


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing it takes most of such a run's time."""
    monkeypatch.setattr("fedapp.report.write_report", lambda folder: folder / "report.html")
    # The sites of one process share the disk, as in a simulation.
    monkeypatch.setattr(app, "InMemoryGrid", LocalGrid)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    def make(name: str, **flat: Any) -> RunConfig:
        given = {key.replace("__", ".").replace("_", "-"): value for key, value in flat.items()}
        return RunConfig.from_flat({**QUICK, **given, "name": name, "output-dir": str(tmp_path)})

    return make


def run(config: RunConfig) -> RunFolder:
    folder = RunFolder.create(config)
    app.run(LocalGrid(), config, folder, 1)
    return folder


def interrupted(config: RunConfig, point: str) -> RunFolder:
    """Strike a run in round 2; nothing is tidied up."""
    folder = RunFolder.create(config)
    with pytest.MonkeyPatch.context() as patch:

        def strike() -> None:
            patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
            raise KeyboardInterrupt

        POINTS[point](Arming(2, strike, patch.setattr))
        with pytest.raises(KeyboardInterrupt):
            app.run(LocalGrid(), config, folder, 1)
    return folder


def summary(folder: RunFolder) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(folder.summary_file.read_text())
    return whole


@pytest.mark.parametrize(
    ("method", "algorithm", "point"),
    [
        pytest.param("svd", "fedavgm", "before checkpoint", marks=pytest.mark.slow),
        pytest.param("fedavg", "scaffold", "between rounds", marks=pytest.mark.slow),
        ("svd", "scaffold", "before checkpoint"),  # the sites are a round ahead then
        pytest.param("dysco", "scaffold", "before checkpoint", marks=pytest.mark.slow),
        pytest.param("dysco", "fedavgm", "between rounds", marks=pytest.mark.slow),
        ("fedsa-lora", "fedavg", "before checkpoint"),
        pytest.param("ditto", "fedavg", "before checkpoint", marks=pytest.mark.slow),
        ("pflalign", "fedavg", "before checkpoint"),
        pytest.param("pflalign", "scaffold", "between rounds", marks=pytest.mark.slow),
    ],
)
def test_resume_is_bit_identical(
    settings: Settings, method: str, algorithm: str, point: str
) -> None:
    common = {"method": method, "federation__algorithm": algorithm, "fedavgm__momentum": 0.5}
    whole = run(settings("whole", **common))

    struck = interrupted(settings("parts", **common), point)
    again = settings("parts", **common).with_changes({"resume": str(struck.path)})
    app.run(LocalGrid(), again, RunFolder.open(struck.path), 2)

    one, other = summary(whole), summary(struck)
    assert one["adapter_digest"] == other["adapter_digest"]
    assert one["sites"] == other["sites"]


def test_ffa_lora_end_to_end(settings: Settings) -> None:
    folder = run(settings("ffa", method="ffa-lora", federation__local_only=True))

    done = summary(folder)
    adapter = load_peft(folder.adapter)
    first = json.loads((folder.path / "config.json").read_text())
    assert first["settings"]["method"] == "ffa-lora"
    numbers = sum(p.b_mr.size for p in adapter.pairs.values()) + sum(
        t.size for t in adapter.tensors.values()
    )
    rows = [r for r in folder.read_metrics() if r["phase"] == "personal"]
    assert {r["bytes_up"] for r in rows} == {4 * numbers}, "B and the heads, nothing else"
    assert all(p.b_mr.any() for p in adapter.pairs.values())
    assert {"received", "personal", "local-only"} <= set(done["mean"])


def test_fedsa_lora_end_to_end(settings: Settings) -> None:
    folder = run(settings("fedsa", method="fedsa-lora", train__learning_rate=0.02))

    done, adapter = summary(folder), load_peft(folder.adapter)
    numbers = sum(pair.a_rn.size for pair in adapter.pairs.values())
    rows = [r for r in folder.read_metrics() if r["phase"] == "personal"]
    assert {r["bytes_up"] for r in rows} == {4 * numbers}, "A, nothing else"
    assert not any(pair.b_mr.any() for pair in adapter.pairs.values())
    assert done["missing"] == {}
    for phases in done["sites"].values():
        assert np.isfinite(phases["received"]["loss"])
    # The model tested at the end has the site's own head, not the seeded one.
    rounds = {
        (r["site"], r["round"]): r["loss"]
        for r in folder.read_metrics()
        if r["phase"] == "received" and r["split"] == "validation"
    }
    for site, phases in done["sites"].items():
        assert rounds[site, 3] != rounds[site, 1], "it goes on where it was"
        assert phases["received"]["loss"] != phases["personal"]["loss"]
    card = (folder.adapter / "README.md").read_text()
    assert "B of every pair and the heads" in card


def test_ditto_shares_what_fedavg_shares_and_tests_what_it_keeps(settings: Settings) -> None:
    plain = run(settings("plain", method="fedavg"))
    folder = run(settings("ditto", method="ditto", ditto__lambda=0.5))

    one, other = summary(plain), summary(folder)
    assert one["adapter_digest"] == other["adapter_digest"]
    for site, phases in other["sites"].items():
        assert phases["received"] == one["sites"][site]["received"]
        assert phases["personal"]["loss"] != one["sites"][site]["personal"]["loss"]
    rows = {
        f.path.name: [r for r in f.read_metrics() if r["phase"] == "personal"]
        for f in (plain, folder)
    }
    assert [r["bytes_up"] for r in rows["plain"]] == [r["bytes_up"] for r in rows["ditto"]]
    for row in rows["ditto"]:
        assert row["own_steps"] == row["steps"]
        assert row["own_distance"] > 0
        assert row["state_round"] == row["round"] - 1


def _hungary_loses_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what the site keeps before the final test."""
    from server_app.rounds import RoundLoop

    test = RoundLoop._final_test

    def lost(loop: RoundLoop, roster: Any) -> None:
        shutil.rmtree(next(p for p in loop.folder.sites.iterdir() if p.name.startswith("Hungary")))
        test(loop, roster)

    monkeypatch.setattr(RoundLoop, "_final_test", lost)


def test_a_site_without_its_own_part_is_named_at_the_end(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hungary_loses_its_state(monkeypatch)
    folder = run(settings("lost", method="fedsa-lora", federation__rounds=1))

    assert (
        "has not trained in this run, or has lost it"
        in summary(folder)["missing"]["Hungary evaluate"]
    )


def test_pflalign_end_to_end_with_half_of_the_sites_a_round_and_one_that_never_trains(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _hungary_loses_its_state(monkeypatch)
    folder = run(
        settings(
            "pflalign",
            method="pflalign",
            federation__fraction=0.67,
            federation__held_out="Cleveland",
            train__learning_rate=0.3,
        )
    )

    rows, done = folder.read_metrics(), summary(folder)
    trained = [r for r in rows if r["phase"] == "personal" and r["split"] == "validation"]
    assert len(trained) == 6, "two of three sites a round"
    for row in trained:
        first = row["state_round"] == 0
        assert ("gate_mean" in row) != first
        assert row["delta_norm"] > 0
        assert 0 <= row["factor_p10"] < row["factor_p90"]
    federation = [r for r in rows if r["phase"] == "federation"]
    assert all({"delta_norm", "factor_mean", "alpha_mean"} <= r.keys() for r in federation)
    assert "gate_mean" in federation[-1]
    assert done["missing"] == {}
    assert np.isfinite(done["held_out"]["Cleveland"]["received"]["loss"])
    printed = capsys.readouterr().out
    assert "site Hungary, round 3: what it kept after round" in printed
    assert "it continued from zero" in printed
    assert "ten times that of SGD" in printed
    assert "an offset to every number" in (folder.adapter / "README.md").read_text()


def test_scaffold_needs_a_place_before_it_trains(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fedapp.errors import MissingReplies

    monkeypatch.setattr(app, "InMemoryGrid", type(None))  # a deployment: no shared disk
    config = settings("none", federation__algorithm="scaffold", federation__max_round_retries=0)

    with pytest.raises(MissingReplies, match=r"with algorithm scaffold keeps .*state-folder="):
        run(config)
