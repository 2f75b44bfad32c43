"""Images from the command line to the exported model: one label an image, and one class a pixel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from desk import Desk
from interface import ROOT
from pictures import save_pictures

pytestmark = pytest.mark.slow

PRESETS = ROOT / "benchmarks" / "presets"
SITES = ["east", "north", "south"]
QUICK = "federation.rounds=2 train.local-epochs=2 train.batch-size=8"


@pytest.mark.parametrize(
    ("preset", "labels", "metrics"),
    [
        ("digits", "", {"accuracy", "auc", "f1", "loss"}),
        ("brain", "data.labels=background,square", {"dice", "iou", "pixel_accuracy", "loss"}),
    ],
)
def test_a_federation_learns_from_images(
    desk: Desk, tmp_path: Path, preset: str, labels: str, metrics: set[str]
) -> None:
    data = save_pictures(tmp_path / "pictures.npz", SITES)
    own = f"data.source={data} data.partition=natural {labels}"
    done = desk.fedapp(
        "run", ROOT, "--name", preset, "-c", PRESETS / f"{preset}.toml", "-c", own, "-c", QUICK
    )

    assert (done.returncode, done.stderr) == (0, "")
    run = desk.here / "runs" / preset
    summary = json.loads((run / "summary.json").read_text())
    assert sorted(summary["sites"]) == SITES
    for phase in ("local-only", "received", "personal"):
        assert set(summary["mean"][phase]) == {*metrics, "sites"}
    assert (run / "report.html").stat().st_size > 10_000
    # The lines of the model card, in a program of their own.
    card = (run / "adapter" / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    _runs(code.replace("path/to/this/folder", str(run / "adapter")))

    exported = desk.fedapp("export", run, "--to", f"{preset}-to", "--merged", f"{preset}-merged")

    assert (exported.returncode, exported.stderr) == (0, "")
    copied = (desk.here / f"{preset}-to" / "model.safetensors").read_bytes()
    assert copied == (run / "adapter" / "model.safetensors").read_bytes()
    line = exported.stdout.strip().splitlines()[-1].removeprefix("Next: ")
    _runs(f"import client_app.image_nets\n{line}", desk.here)


def _runs(code: str, place: Path = ROOT) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, cwd=place)
