"""Dysco from the command line: two phases a round, one adapter of all rounds, a merged model."""

from __future__ import annotations

import json

import pytest
import torch
from desk import Desk
from interface import ROOT
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from client_app.sources import resolve_model

pytestmark = pytest.mark.slow

QUICK = (
    "method=dysco model.source=embedded:tiny-encoder federation.rounds=2 data.max-examples=24 "
    "train.local-epochs=1 lora.rank=2 federation.interference=true federation.local-only=false"
)


def test_a_federation_boosts(desk: Desk) -> None:
    done = desk.fedapp("run", ROOT, "--name", "boosted", "-c", QUICK)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("adapter: all rounds as one of rank 16, relative error") == 1
    run = desk.here / "runs" / "boosted"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rounds = [row for row in rows if row["phase"] == "federation"]
    assert [row["basis_replies"] for row in rounds] == [4, 4]
    assert [row["folded_rank"] for row in rounds] == [8, 16]
    assert rounds[1]["interference_ratio"] > 0
    assert all(row["basis_bytes_up"] > 0 for row in rounds)
    assert (run / "report.html").stat().st_size > 10_000

    merged = desk.fedapp("export", run, "--merged", "whole")

    assert (merged.returncode, merged.stderr) == (0, "")
    source = resolve_model("embedded:tiny-encoder").path
    batch = AutoTokenizer.from_pretrained(source)(["no chest pain"], return_tensors="pt")
    base = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2)
    adapted = PeftModel.from_pretrained(base, run / "adapter").eval()
    whole = AutoModelForSequenceClassification.from_pretrained(desk.here / "whole").eval()
    with torch.inference_mode():
        torch.testing.assert_close(
            whole(**batch).logits, adapted(**batch).logits, rtol=1e-4, atol=1e-5
        )
