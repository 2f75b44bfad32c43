"""The main job over TLS with authenticated SuperNodes, in containers: the simulation's own bits.

Whoever trains, where and how its messages travel must not change a number: records, seeds, order of
the merge and threads are the same, and so is every byte of the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from interface import ROOT
from peft import PeftModel
from stack import HOSPITALS, Stack
from stack_run import StackRun
from transformers import AutoModelForSequenceClassification

from client_app.sources import resolve_model

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

ROUNDS = 2
SETTINGS: dict[str, Any] = {
    "federation.rounds": ROUNDS, "federation.local-only": False, "train.threads": 1,
}  # fmt: skip
TIMES = ("seconds", "_at", "clock", "bytes_per_second", "memory")


@pytest.fixture(scope="module")
def deployed(stack: Stack) -> StackRun:
    """The main job (Subspace-Reg, MiniLM, heart), with fewer rounds."""
    run = stack.run("main", **SETTINGS)
    assert run.result(within=900) == 0, run.output[-6000:]
    return run


@pytest.fixture(scope="module")
def simulated(stack: Stack, deployed: StackRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on one machine in one process: same seed, same three hospitals, same records."""
    desk = Desk(tmp_path_factory.mktemp("desk"))
    # A container has none of this machine's choices of numpy's kernels, which show in a last bit.
    desk.environment = {k: v for k, v in desk.environment.items() if not k.startswith("OPENBLAS_")}
    lines: list[str] = []
    for site in HOSPITALS.values():
        path = stack.folder / "deploy" / "demo" / "data" / site / "records.csv"
        head, *rows = path.read_text(encoding="utf-8").splitlines()
        lines += rows
    (desk.here / "records.csv").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    given = {**SETTINGS, "data.source": "records.csv", "federation.min-sites": 3}
    done = desk.fedapp(
        "run", ROOT, "--name", "main", "-c", "data.labels='no heart disease,heart disease'",
        *(word for key, value in given.items() for word in ("-c", f"{key}={json.dumps(value)}")),
    )  # fmt: skip
    desk.fedapp("stop", ROOT)
    assert done.returncode == 0, done.stderr
    return desk.here / "runs" / "main"


def test_the_run_folder_is_on_the_host_and_complete(stack: Stack, deployed: StackRun) -> None:
    assert deployed.rounds() == ROUNDS
    assert sorted(deployed.summary()["sites"]) == sorted(HOSPITALS.values())
    assert json.loads((deployed.folder / "status.json").read_text())["state"] == "completed"
    assert json.loads((deployed.folder / "config.json").read_text())
    assert (deployed.folder / "report.html").stat().st_size > 10_000
    assert (deployed.folder / "adapter" / "adapter_model.safetensors").exists()


def test_the_adapter_has_the_bits_of_the_simulations(deployed: StackRun, simulated: Path) -> None:
    file = Path("adapter") / "adapter_model.safetensors"
    assert (deployed.folder / file).read_bytes() == (simulated / file).read_bytes()
    assert (
        deployed.summary()["adapter_digest"]
        == json.loads((simulated / "summary.json").read_text())["adapter_digest"]
    )


def test_every_number_of_every_site_is_the_simulations(deployed: StackRun, simulated: Path) -> None:
    rows = [json.loads(line) for line in (simulated / "metrics.jsonl").read_text().splitlines()]
    assert [measured(row) for row in deployed.metrics()] == [measured(row) for row in rows]


def test_plain_peft_loads_the_adapter(deployed: StackRun) -> None:
    base = AutoModelForSequenceClassification.from_pretrained(
        resolve_model("embedded:minilm").path, num_labels=2
    )
    model = PeftModel.from_pretrained(base, deployed.folder / "adapter")
    again = model.load_adapter(deployed.folder / "adapter", adapter_name="again")
    assert again.unexpected_keys == []
    assert [key for key in again.missing_keys if "lora_" in key or "modules_to_save" in key] == []


def test_both_sides_wrote_down_the_same_updates(stack: Stack, deployed: StackRun) -> None:
    """What a hospital's audit log says has left is what the coordinator's says was merged."""
    merged = audited((deployed.folder / "audit.jsonl").read_text(encoding="utf-8"), "merged")
    assert [row["round"] for row in merged] == list(range(1, ROUNDS + 1))
    for service, site in HOSPITALS.items():
        said = stack.exec(f"site-{service}", "cat", "/state/site/audit.jsonl").stdout
        asked = audited(said, "asked")
        # Other runs were before this one on the shared stack.
        mine = {row["task"] for row in asked if row["run"] == asked[-1]["run"] != ""}
        left = {
            row["round"]: row["payloads"]["adapter"]["sha256"]
            for row in audited(said, "answered")
            if row["action"] == "train" and row["task"] in mine
        }
        assert left == {row["round"]: row["updates"][site]["adapter"] for row in merged}


def audited(text: str, event: str) -> list[dict[str, Any]]:
    """Return the lines of an audit log that tell of one kind of event."""
    rows = [json.loads(line)["body"] for line in text.splitlines()]
    return [row for row in rows if row["event"] == event]


def measured(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics.jsonl without what a clock or another machine decides."""
    return {key: value for key, value in row.items() if not any(word in key for word in TIMES)}
