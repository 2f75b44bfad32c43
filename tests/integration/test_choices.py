"""Multiple choice from the command line to the adapter, with an encoder and with a decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from desk import Desk
from interface import ROOT
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForMultipleChoice

from client_app.sources import resolve_model

pytestmark = pytest.mark.slow

PRESET = ROOT / "benchmarks" / "presets" / "choices.toml"
SITES = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
QUICK = "federation.rounds=2 data.max-examples=24 train.local-epochs=1"


@pytest.mark.parametrize(
    ("source", "targets", "loader"),
    [
        ("embedded:tiny-encoder", "query,value", AutoModelForMultipleChoice),
        ("embedded:tiny-decoder", "q_proj,v_proj", AutoModelForCausalLM),
    ],
)
def test_a_federation_answers_questions(
    desk: Desk, source: str, targets: str, loader: type
) -> None:
    name = source.removeprefix("embedded:")
    done = desk.fedapp(
        "run", ROOT, "--name", name, "-c", PRESET, "-c", QUICK,
        "-c", f"model.source={source} lora.targets={targets}",
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    run = desk.here / "runs" / name
    summary = json.loads((run / "summary.json").read_text())
    assert sorted(summary["sites"]) == sorted(SITES)
    for phase in ("local-only", "received", "personal"):
        assert 0 <= summary["mean"][phase]["accuracy"] <= 1
        assert summary["mean"][phase]["loss"] > 0
        assert set(summary["mean"][phase]) == {"accuracy", "loss", "sites"}
    card = (run / "adapter" / "README.md").read_text()
    assert f"import {loader.__name__}" in card
    assert (run / "report.html").stat().st_size > 10_000
    _loads_with_plain_peft(run, loader, resolve_model(source).path)

    merged = desk.fedapp("export", run, "--merged", f"{name}-merged")

    assert (merged.returncode, merged.stderr) == (0, "")
    assert f"{loader.__name__}.from_pretrained" in merged.stdout
    loader.from_pretrained(desk.here / f"{name}-merged")


def _loads_with_plain_peft(run: Path, loader: type, base: str) -> None:
    model = PeftModel.from_pretrained(loader.from_pretrained(base), run / "adapter")
    loaded = model.load_adapter(run / "adapter", adapter_name="again")

    assert loaded.unexpected_keys == []
    assert [key for key in loaded.missing_keys if "lora_" in key or "modules_to_save" in key] == []
