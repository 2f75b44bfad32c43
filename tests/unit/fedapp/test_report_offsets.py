"""The report of a run in which hospitals keep offsets of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_run

from fedapp.report import write_report

FEDERATION = ("factor_mean", "gate_mean", "delta_withdrawn", "delta_norm")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", sites={"North": 100, "South": 50}, rounds=3)


def edit(folder: Path, more: Any) -> str:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, **more(row)}) + "\n" for row in rows))
    return write_report(folder).read_text()


def test_each_hospital_has_a_row_of_its_newest_numbers(folder: Path) -> None:
    def more(row: dict[str, Any]) -> dict[str, Any]:
        if row["phase"] == "federation":
            return dict.fromkeys(FEDERATION, 0.25)
        if row["phase"] != "personal":
            return {}
        gate = (
            {"gate_mean": 0.4, "gate_p10": 0.1, "gate_p90": 0.7} if row["site"] == "North" else {}
        )
        return {"delta_norm": row["round"] + 0.5, "delta_withdrawn": 0.125, **gate}

    text = edit(folder, more)

    (section,) = [s for s in text.split("<section") if 'aria-labelledby="offsets"' in s]
    north, south = (section.split(f">{site}<")[1].split("</tr>")[0] for site in ("North", "South"))
    assert "<td>3.5</td><td>0.400 (0.100 to 0.700)</td><td>0.125</td><td>–</td>" in north
    assert "<td>3.5</td><td>–</td><td>0.125</td>" in south
    for title in ("Size of the hospitals' offsets", "Factor and gate"):
        assert f"<h3>{title.replace(chr(39), '&#x27;')}</h3>" in text.replace("&#39;", "&#x27;")


def test_other_methods_have_no_such_section(folder: Path) -> None:
    text = edit(folder, lambda row: {})
    assert "offsets" not in text.split("<main>")[-1]


@pytest.mark.parametrize("value", [None, "x", 1e300, [1]])
def test_absurd_numbers_are_dashes(folder: Path, value: Any) -> None:
    text = edit(folder, lambda row: {"delta_norm": value, "gate_mean": 0.5, "delta_withdrawn": 0.5})
    assert "<td>–</td><td>–</td><td>0.5</td>" in text


def test_the_ratio_of_signal_to_noise_is_drawn_for_three_layers(folder: Path) -> None:
    layers = {f"gsnr_layer_{number}": 0.1 * number for number in (0, 2, 10, 11)}

    text = edit(folder, lambda row: layers if row["phase"] == "federation" else {})

    (card,) = [part for part in text.split("<h3>") if part.startswith("Signal to noise by layer<")]
    assert [f"layer {number}" in card for number in (0, 2, 10, 11)] == [True, False, True, True]
    assert "Signal to noise by layer" not in edit(folder, lambda row: dict.fromkeys(layers))
