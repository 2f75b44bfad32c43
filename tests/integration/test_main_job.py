"""The real apps on real Flower and Ray, from the command line, with the tiny encoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from desk import Desk, wait_for_line
from interface import ROOT
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from client_app.sources import resolve_model

pytestmark = pytest.mark.slow

QUICK = "model.source=embedded:tiny-encoder data.max-examples=60 federation.rounds=3 "
SITES = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")


@pytest.fixture(scope="module")
def whole(desk: Desk) -> Path:
    """An uninterrupted run."""
    done = desk.fedapp("run", ROOT, "--name", "whole", "-c", QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("round 3/3", "local-only", "received", "personal", *SITES, "mean", "worst"):
        assert words in done.stdout
    return desk.here / "runs" / "whole"


def test_the_run_folder_holds_what_it_promises(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]

    assert sorted(summary["sites"]) == sorted(SITES)
    for phases in summary["sites"].values():
        assert set(phases) == {"local-only", "received", "personal"}
    assert [row["round"] for row in rows if row["site"] is None] == [1, 2, 3]
    for site in SITES:
        test_rows = [r for r in rows if r["site"] == site and r.get("split") == "test"]
        assert sorted(row["phase"] for row in test_rows) == ["local-only", "personal", "received"]
    assert (whole / "report.html").stat().st_size > 10_000
    assert (whole.parent / "latest").resolve() == whole
    assert json.loads((whole / "status.json").read_text())["state"] == "completed"


def test_plain_peft_loads_the_adapter_with_no_key_missing_or_unexpected(whole: Path) -> None:
    base = AutoModelForSequenceClassification.from_pretrained(
        resolve_model("embedded:tiny-encoder").path, num_labels=2
    )
    model = PeftModel.from_pretrained(base, whole / "adapter")
    loaded = model.load_adapter(whole / "adapter", adapter_name="again")

    assert loaded.unexpected_keys == []
    assert [key for key in loaded.missing_keys if "lora_" in key or "modules_to_save" in key] == []


def test_a_run_that_was_stopped_resumes_to_the_same_bits(desk: Desk, whole: Path) -> None:
    process = desk.start("run", ROOT, "--name", "stopped", "-c", QUICK)
    wait_for_line(process, "round 2/3")
    process.kill()  # no chance to tidy up; the next command ends what it left behind
    process.wait(timeout=300)

    done = desk.fedapp("run", ROOT, "--resume", desk.here / "runs" / "stopped")

    assert (done.returncode, done.stderr) == (0, "")
    assert "resumed after round" in done.stdout
    digests = {
        name: json.loads((desk.here / "runs" / name / "summary.json").read_text())["adapter_digest"]
        for name in ("whole", "stopped")
    }
    assert digests["stopped"] == digests["whole"]


def test_bad_data_ends_in_one_sentence_and_its_exit_code(desk: Desk) -> None:
    (desk.here / "bad.csv").write_text("text,label,site\nfever,1,North\n")

    done = desk.fedapp(
        "run", ROOT, "--name", "bad", "-c", QUICK,
        "-c", "data.source=bad.csv data.label-column=diagnosis",
    )  # fmt: skip

    assert done.returncode == 3
    assert "diagnosis" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "fever" not in done.stdout + done.stderr
