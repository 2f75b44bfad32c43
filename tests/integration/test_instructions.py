"""Instruction tuning with the real apps on Flower and Ray: the preset, and what a run leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from desk import Desk, wait_for_line
from interface import ROOT
from peft import PeftModel
from transformers import AutoModelForCausalLM

from client_app.tiny_models import tiny_decoder

pytestmark = pytest.mark.slow

PRESET = str(ROOT / "benchmarks" / "presets" / "instructions.toml")
QUICK = "federation.rounds=2 train.max-steps=20 train.generate-examples=8"
SITES = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
MEASURED = {"loss", "perplexity", "token_accuracy", "exact_match", "rouge_l", "examples"}


@pytest.fixture(scope="module")
def whole(desk: Desk) -> Path:
    """An uninterrupted run of the preset."""
    done = desk.fedapp("run", ROOT, "--name", "whole", "-c", PRESET, "-c", QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("round 2/2", "validation ROUGE-L", "ROUGE-L ┃ exact ┃  loss", *SITES, "worst"):
        assert words in done.stdout
    assert " acc " not in done.stdout
    return desk.here / "runs" / "whole"


def read(run: Path, name: str) -> Any:
    return json.loads((run / name).read_text(encoding="utf-8"))


def test_the_loss_falls_at_every_site(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]

    for site in SITES:
        first, second = (
            next(
                row["loss"]
                for row in rows
                if (row["site"], row["round"], row["phase"]) == (site, round_, phase)
                and row["split"] == "validation"
            )
            for round_, phase in ((1, "received"), (2, "personal"))
        )
        assert second < 0.8 * first
    federation = [row for row in rows if row["site"] is None]
    assert federation[1]["received_loss"] < federation[0]["received_loss"]
    assert {"rouge_l", "token_accuracy", "exact_match", "loss"} <= set(federation[0])
    assert "accuracy" not in federation[0]


def test_the_summary_has_the_task_s_metrics(whole: Path) -> None:
    summary = read(whole, "summary.json")

    for phases in summary["sites"].values():
        assert set(phases) == {"local-only", "received", "personal"}
        for metrics in phases.values():
            assert set(metrics) >= MEASURED
    worst = summary["worst"]["received"]
    values = {site: phases["received"]["rouge_l"] for site, phases in summary["sites"].items()}
    assert worst["rouge_l"] == min(values.values()) == values[worst["site"]]
    told = read(whole, "config.json")["sites"]
    assert {tuple(site["label_map"]) for site in told.values()} == {()}


def test_card_and_report_speak_of_the_task(whole: Path) -> None:
    card = (whole / "adapter" / "README.md").read_text(encoding="utf-8")
    page = (whole / "report.html").read_text(encoding="utf-8")

    assert "| phase | ROUGE-L | exact match | loss | token accuracy | perplexity | worst" in card
    assert "AutoModelForCausalLM.from_pretrained" in card
    assert "num_labels" not in card + page
    assert "AutoModelForCausalLM" in page
    assert "test ROUGE-L" in page
    assert "Validation ROUGE-L over rounds" in page
    for foreign in ("AUC", "F1", "Accuracy"):
        assert f">{foreign}<" not in page


def test_plain_peft_loads_the_adapter_with_no_key_missing_or_unexpected(whole: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(tiny_decoder())
    model = PeftModel.from_pretrained(base, whole / "adapter")
    loaded = model.load_adapter(whole / "adapter", adapter_name="again")

    assert loaded.unexpected_keys == []
    assert [key for key in loaded.missing_keys if "lora_" in key] == []


def test_a_run_that_was_killed_resumes_to_the_same_bits(desk: Desk, whole: Path) -> None:
    process = desk.start("run", ROOT, "--name", "killed", "-c", PRESET, "-c", QUICK)
    wait_for_line(process, "round 2/2")
    process.kill()
    process.wait(timeout=300)

    # What is generated may differ: it is measured beside the training.
    done = desk.fedapp(
        "run", ROOT, "--resume", desk.here / "runs" / "killed", "-c", "train.generate-tokens=0"
    )

    assert (done.returncode, done.stderr) == (0, "")
    summaries = [read(desk.here / "runs" / name, "summary.json") for name in ("whole", "killed")]
    assert summaries[0]["adapter_digest"] == summaries[1]["adapter_digest"]
    one, two = (summary["sites"]["Hungary"]["received"] for summary in summaries)
    assert one["loss"] == two["loss"]
    assert "rouge_l" not in two


def test_a_file_of_chats_without_generation(desk: Desk) -> None:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"man {number}, BP 140. How old is the patient?"},
                {"role": "assistant", "content": f"{number} years"},
            ],
            "site": "AB"[number % 2],
        }
        for number in range(40)
    ]
    (desk.here / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))

    done = desk.fedapp(
        "run", ROOT, "--name", "chats", "-c", PRESET, "-c", QUICK,
        "-c", "data.source=chats.jsonl train.generate-tokens=0 federation.rounds=1",
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert "validation token accuracy" in done.stdout
    worst = read(desk.here / "runs" / "chats", "summary.json")["worst"]["personal"]
    assert "token_accuracy" in worst
    assert "rouge_l" not in worst


def test_the_wrong_task_for_a_source_ends_in_one_sentence(desk: Desk) -> None:
    done = desk.fedapp(
        "run", ROOT, "--name", "wrong", "-c", PRESET, "-c", "data.source=embedded:heart"
    )

    assert done.returncode == 2
    assert "set model.task to sequence-classification, or data.source to embedded:inst" in (
        " ".join(done.stderr.split())
    )
