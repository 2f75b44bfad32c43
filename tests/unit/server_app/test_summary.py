from __future__ import annotations

from typing import Any

import pytest

from fedapp.config import RunConfig
from fedapp.exchange import SiteDescription
from fedapp.results import finite
from server_app.card import model_card
from server_app.summary import render, summarise, test_table

test_table.__test__ = False  # type: ignore[attr-defined]

TOTALS = {"wall_seconds": 9.5, "training_seconds": 3.0, "bytes_up": 10.0, "bytes_down": 20.0}


def _row(site: str | None, phase: str, split: str = "test", round: int = 2, **m: Any) -> Any:
    return {"round": round, "site": site, "phase": phase, "split": split, "seconds": 1.0, **m}


ROWS = [
    _row("A", "personal", round=1, accuracy=0.1, auc=0.1, f1=0.1),
    _row("A", "personal", accuracy=0.9, auc=0.95, f1=0.85, loss=0.2, examples=10),
    _row("B", "personal", accuracy=0.5, f1=0.45),  # one class: AUC is undefined
    _row("A", "personal", split="validation", accuracy=0.0),
    _row("A", "received", accuracy=0.6, auc=0.7, f1=0.5),
    _row("B", "received", accuracy=0.4, f1=0.3),
    _row("C", "received", accuracy=0.7, auc=0.8, f1=0.6),
    _row(None, "federation", accuracy=0.0),
]


def _summary() -> dict[str, Any]:
    config = RunConfig.from_flat(
        {"method": "svd", "federation.held-out": "C", "federation.rounds": 2}
    )
    return summarise(config, ROWS, name="n", totals=TOTALS, adapter_digest="d", missing={})


def test_the_newest_test_row_of_each_phase_counts() -> None:
    table = test_table(ROWS)

    assert table["A"]["personal"] == {
        "accuracy": 0.9,
        "auc": 0.95,
        "f1": 0.85,
        "loss": 0.2,
        "examples": 10,
    }
    assert set(table) == {"A", "B", "C"}


def test_means_leave_out_what_is_undefined_and_who_is_held_out() -> None:
    summary = _summary()

    assert summary["mean"]["personal"]["accuracy"] == pytest.approx(0.7)
    assert summary["mean"]["personal"]["auc"] == pytest.approx(0.95)
    assert summary["mean"]["received"]["accuracy"] == pytest.approx(0.5)
    assert summary["mean"]["personal"]["sites"] == {"accuracy": 2, "loss": 1, "auc": 1, "f1": 2}
    assert "local-only" not in summary["mean"]
    assert summary["worst"]["received"] == {"site": "B", "accuracy": 0.4, "f1": 0.3}
    assert set(summary["sites"]) == {"A", "B"}
    assert summary["held_out"] == {"C": {"received": {"accuracy": 0.7, "auc": 0.8, "f1": 0.6}}}
    assert (summary["bytes_up"], summary["wall_seconds"]) == (10, 9.5)


def test_the_table_shows_every_site_and_a_dash_for_the_undefined() -> None:
    text = render(_summary())

    lines = {line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line}
    assert {"A", "B", "C (held out)", "mean", "worst"} <= set(lines)
    cells = [cell.strip() for cell in lines["B"].split("│")[2:-1]]
    assert cells == ["0.400", "-", "0.300", "0.500", "-", "0.450"]
    assert [c.strip() for c in lines["C (held out)"].split("│")[2:-1]][3:] == ["-"] * 3
    assert "worst site: received: B, personal: B" in text
    assert "means over" not in text
    assert max(map(len, text.splitlines())) <= 110


def test_means_over_fewer_sites_are_said_to_be_so() -> None:
    config = RunConfig.from_flat({"method": "svd", "federation.rounds": 2})
    summary = summarise(config, ROWS, name="n", totals=TOTALS, adapter_digest="d", missing={})

    assert "means over received: 3 of 3 sites, personal: 2 of 3 sites\n" in render(summary)


def test_the_card_names_what_a_reader_needs() -> None:
    site = SiteDescription(
        site="A",
        package_version="1",
        base_model="embedded:minilm",
        base_model_digest="abc",
        layout_digest="",
        initial_digest="",
        rank=8,
        alpha=16,
        targets=["query"],
        heads=[],
        dtype="fp32",
        task="sequence-classification",
        label_map=["well", "ill"],
        examples={},
        device="cpu",
        threads=1,
        torch_version="2",
        clock=0.0,
        peft_config={"base_model_name_or_path": "org/minilm"},
        notes=[],
    )
    config = RunConfig.from_flat({"method": "svd"})

    card = model_card(config, site, finite(_summary()))

    assert card.startswith("---\nlibrary_name: peft\nbase_model: org/minilm\n")
    for text in (
        "`svd`",
        "0 = well, 1 = ill",
        "| personal | 0.700 | 0.950 |",
        "B (0.500)",
        "held out C | 0.700",
        "PeftModel.from_pretrained",
        "num_labels=2",
        "icence",
        "2 trained, 1 held out",
    ):
        assert text in card


def test_brackets_in_a_name_are_no_markup() -> None:
    summary = _summary()
    summary["sites"] = {"Ward [/A]": summary["sites"]["A"], "[red]": summary["sites"]["B"]}

    text = render(summary)

    assert "Ward [/A]" in text
    assert "[red]" in text


WRITTEN = [
    _row("A", "personal", rouge_l=0.4, exact_match=0.2, loss=1.5, perplexity=4.5, examples=9),
    _row("B", "personal", rouge_l=0.3, exact_match=0.3, loss=1.0, perplexity=2.7, examples=9),
]


def test_a_language_model_has_its_own_table_means_and_worst_site() -> None:
    config = RunConfig.from_flat({"model.task": "causal-lm"})

    summary = summarise(config, WRITTEN, name="n", totals=TOTALS, adapter_digest="d", missing={})
    text = render(summary, config)

    assert summary["mean"]["personal"]["rouge_l"] == pytest.approx(0.35)
    assert summary["mean"]["personal"]["perplexity"] == pytest.approx(3.6)
    assert summary["worst"]["personal"]["site"] == "B"
    assert "ROUGE-L" in text
    assert "worst site: personal: B" in text
    assert "acc" not in text
    assert "means over" not in text
    assert all(len(line) <= 110 for line in text.splitlines())
