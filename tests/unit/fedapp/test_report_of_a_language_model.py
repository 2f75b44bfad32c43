"""The report of an instruction-tuning run: its own metrics, and no interval where there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedapp.report import write_report

SITES = {"North": 0.4, "South": 0.7}


def row(site: str, round_: int, phase: str, split: str, level: float, written: bool) -> Any:
    more = {"rouge_l": level, "exact_match": level / 2, "generated": 9} if written else {}
    return {
        "round": round_, "site": site, "phase": phase, "split": split, "loss": 2 - level,
        "perplexity": 7.5 - level, "token_accuracy": level + 0.1, "examples": 20,
        "response_tokens": 99, "bytes_up": 10, "bytes_down": 10, "seconds": 1.0, **more,
    }  # fmt: skip


def page(folder: Path, tokens: int) -> str:
    """Write a finished run and return its report."""
    settings = {
        "method": "fedavg",
        "model.task": "causal-lm",
        "train.generate-tokens": tokens,
        "federation.rounds": 2,
    }
    told = {"label_map": [], "base_model": "org/m", "peft_config": {"task_type": "CAUSAL_LM"}}
    sites = dict.fromkeys(SITES, told)
    (folder / "config.json").write_text(json.dumps({"settings": settings, "sites": sites}))
    rows = []
    for round_ in (1, 2):
        for site, level in SITES.items():
            rows += [
                row(site, round_, phase, "validation", level - 0.1, tokens > 0)
                for phase in ("received", "personal")
            ]
        means = {"loss": 1.5, "token_accuracy": 0.6, "received_loss": 1.6}
        more = {"rouge_l": 0.55, "exact_match": 0.2} if tokens else {}
        federation = {"round": round_, "site": None, "phase": "federation", **means, **more}
        rows.append({**federation, "replies": 2, "seconds": 2.0})
    for site, level in SITES.items():
        for phase in ("received", "personal"):
            lower = level - 0.1 * (phase == "received")
            rows.append(row(site, 2, phase, "test", lower, tokens > 0))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    metrics = {
        site: {
            phase: next(
                r for r in rows if (r["site"], r["phase"], r.get("split")) == (site, phase, "test")
            )
            for phase in ("received", "personal")
        }
        for site in SITES
    }
    summary = {"status": "completed", "method": "fedavg", "sites": metrics}
    (folder / "summary.json").write_text(json.dumps(summary))
    return write_report(folder).read_text(encoding="utf-8")


def words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL))


def test_it_speaks_of_the_task_and_of_nothing_that_was_not_measured(tmp_path: Path) -> None:
    text = page(tmp_path, 16)
    said = words(text)

    for heading in ("ROUGE-L", "Exact match", "Loss", "Token accuracy", "Perplexity"):
        assert f">{heading}</th>" in text
    assert "the personal models did best: mean test ROUGE-L 0.55 , against 0.45" in said
    assert "Mean test ROUGE-L 0.55" in said
    assert "The worst-served hospital fares best with the personal models : North" in said
    assert "Validation ROUGE-L over rounds" in said
    assert "rouge_l" not in said
    for foreign in ("AUC", "F1", "accuracy of 0.80", "interval", "95 %", "num_labels", "one class"):
        assert foreign not in said
    assert "ROUGE-L, token accuracy, exact match and loss: mean of the personal models" in said
    assert "AutoModelForCausalLM.from_pretrained('org/m')" in said.replace("&#x27;", "'")


def test_without_generation_it_goes_by_the_tokens(tmp_path: Path) -> None:
    text = page(tmp_path, 0)
    said = words(text)

    assert "mean test token accuracy 0.65" in said
    for heading in ("Token accuracy", "Loss", "Perplexity"):
        assert f">{heading}</th>" in text
    assert ">ROUGE-L</th>" not in text
    assert "No hospital" not in said


@pytest.mark.parametrize("tokens", [0, 16])
def test_a_run_without_any_metric_says_so(tmp_path: Path, tokens: int) -> None:
    settings = {"model.task": "causal-lm", "train.generate-tokens": tokens}
    (tmp_path / "config.json").write_text(json.dumps({"settings": settings}))

    said = words(write_report(tmp_path).read_text(encoding="utf-8"))

    metric = "ROUGE-L" if tokens else "token accuracy"
    assert f"No hospital has reported a {metric} yet." in said
