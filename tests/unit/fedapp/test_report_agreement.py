"""The heat maps of agreement and the traffic of hospitals that exchange updates directly."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_folders import write_run

from fedapp.gossip.ledger import Heard, Ledger
from fedapp.gossip.traffic import Traffic
from fedapp.report import write_report
from fedapp.report.heat_map import FAINTEST, LEVELS, heat_map, shade
from fedapp.report.refused import refusers

SVG = "{http://www.w3.org/2000/svg}"
PEERS = ("Graz", "Kiel <b>", "Ulm")


def score(peer: str, round_: int) -> float:
    return {"Graz": 0.2, "Kiel <b>": 0.5, "Ulm": 1.0}[peer] - 0.02 * round_


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = write_run(tmp_path / "run")
    ledger = Ledger(run / "ledger" / "Bern.jsonl", "run", "Bern")
    for round_ in (1, 2, 3):
        heard = [
            Heard(origin=peer, accepted=True, weight=0.2, scores={"agreement": score(peer, round_)})
            for peer in PEERS
            if (peer, round_) not in {("Graz", 2), ("Ulm", 3)}
        ]
        if round_ == 2:
            heard.append(Heard(origin="Graz", accepted=False, reason="its signature is broken"))
        ledger.record(
            round_,
            heard,
            time=1.0,
            missing=["Ulm"] if round_ == 3 else [],
            traffic=Traffic(2_000_000, 1_000_000, 3, 3, resent=500),
        )
    ledger.close()
    return run


def plots(page: str) -> Iterator[ET.Element]:
    for found in re.findall(r"<svg[^>]*agreement-\d+-title.*?</svg>", page, re.DOTALL):
        yield ET.fromstring(found)


def shades(svg: ET.Element) -> dict[float, int]:
    """Opacity -> number of cells drawn in it."""
    found = {}
    for path in svg.iter(f"{SVG}path"):
        style = path.get("style", "")
        opacity = re.search(r"opacity: ([\d.]+)", style)
        if "var(--received)" in style:
            found[float(opacity[1]) if opacity else 1.0] = path.get("d", "").count("M")
    return found


def test_a_cell_for_every_score_and_a_cross_for_every_refusal(folder: Path) -> None:
    page = write_report(folder).read_text(encoding="utf-8")

    (svg,) = plots(page)
    expected: dict[float, int] = {}
    for peer in PEERS:
        for round_ in (1, 2, 3):
            if (peer, round_) not in {("Graz", 2), ("Ulm", 3)}:
                level = round(score(peer, round_) * (LEVELS - 1))
                opacity = round(FAINTEST + (1 - FAINTEST) * level / (LEVELS - 1), 6)
                expected[opacity] = expected.get(opacity, 0) + 1
    assert shades(svg) == expected
    crosses = [use for use in svg.iter(f"{SVG}use") if "var(--bad)" in use.get("style", "")]
    assert len(crosses) == 1
    spoken = next(svg.iter(f"{SVG}desc")).text or ""
    assert "Graz: mean 0.16 over 2 rounds, 1 refused." in spoken
    assert "Ulm: mean 0.97 over 2 rounds." in spoken
    assert "Kiel &lt;b&gt;" in page
    assert "Kiel <b>" not in page


def test_bytes_and_messages_of_a_round_are_in_a_table(folder: Path) -> None:
    page = write_report(folder).read_text(encoding="utf-8")

    row = re.search(r"<bdi>Bern</bdi></th>(.*?)</tr>", page)
    assert row is not None
    cells = re.findall(r"<td>(.*?)</td>", row[1])
    assert cells == ["3", "2 MB", "1 MB", "6", "1.5 kB"]


def test_the_same_files_give_the_same_bytes(folder: Path) -> None:
    assert write_report(folder).read_bytes() == write_report(folder).read_bytes()


def test_a_damaged_ledger_is_named_and_the_rest_is_shown(folder: Path) -> None:
    path = folder / "ledger" / "Bern.jsonl"
    path.with_name("Aarau.jsonl").write_text(path.read_text().replace("0.2", "0.9"))

    page = write_report(folder).read_text(encoding="utf-8")

    assert "A ledger is left out: " in page
    assert "Aarau.jsonl, line 1, was altered" in page
    assert len(list(plots(page))) == 1


def test_a_run_without_ledgers_says_nothing_of_it(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run")).read_text(encoding="utf-8")

    assert "Exchange between hospitals" not in page


def test_a_big_map_stays_small() -> None:
    cells = {f"peer {p}": {r: (p * r % 97) / 96 for r in range(100)} for p in range(24)}

    svg = heat_map(cells, {"peer 0": range(100)}, (0, 99), key="big", title="big")

    assert len(svg) < 250_000
    assert sum(shades(ET.fromstring(svg)).values()) == 2400


def test_scores_outside_the_scale_are_drawn_at_its_ends() -> None:
    assert (shade(-3.0), shade(0.0), shade(1.0), shade(7.0)) == (0, 0, LEVELS - 1, LEVELS - 1)


def test_who_was_refused_by_which_gate_and_the_row_behind_each_cell(tmp_path: Path) -> None:
    run = write_run(tmp_path / "gates")
    ledger = Ledger(run / "ledger" / "Bern.jsonl", "run", "Bern")
    scores = {"agreement": 0.8125, "distance": None}
    for round_, reason in enumerate(
        ["", "distance, kernel", "kernel", "non-finite: NaN at [0]"], 1
    ):
        ledger.record(
            round_,
            [
                Heard(
                    origin="Ulm <b>", digest="ab" * 32, accepted=not reason, reason=reason,
                    weight=0.0 if reason else 0.25, scores=scores,
                )
            ],
            time=1.0,
        )  # fmt: skip
    ledger.close()

    page = write_report(run).read_text(encoding="utf-8")

    assert "Who was refused by what: 3 refusals" in page
    table = page[page.index("Refusals by gate") :]
    heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]*)</th>", table)[:7]
    assert heads == [
        "Hospital", "Peer", "Heard", "Accepted", "By distance", "By kernel", "By non-finite",
    ]  # fmt: skip
    cells = re.findall(r"<td>(\d+)</td>", table)[:5]
    assert cells == ["4", "1", "1", "2", "1"]
    assert "refused: distance, kernel" in page
    assert "<td>0.81</td><td>–</td>" in page  # no number for the distance
    assert "abababababab" in page
    assert "Ulm <b>" not in page


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("", ()),
        ("kernel", ("kernel",)),
        ("kernel, prediction", ("kernel", "prediction")),
        ("wrong-layout: site Bern has another base model, or labels", ("wrong-layout",)),
        ("its signature is broken", ("other",)),
    ],
)
def test_a_reason_names_gates_or_one_fault(reason: str, expected: tuple[str, ...]) -> None:
    assert refusers(reason) == expected


def test_honest_hospitals_of_a_rehearsal_have_a_table_of_their_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sites={"Bern": 200, "Graz": 300, "Ulm": 100}, rounds=3)
    of_rounds: dict[str, list[dict[str, bool]]] = {
        "Bern": [{"Graz": True, "Ulm": True}, {"Graz": False, "Ulm": False}],
        "Graz": [{"Bern": True, "Ulm": False}, {"Bern": True}],
        "Ulm": [{"Bern": False, "Graz": False}, {"Bern": False}],  # the faulty one's own
    }
    for node, rounds in of_rounds.items():
        ledger = Ledger(run / "ledger" / f"{node}.jsonl", "run", node)
        for round_, peers in enumerate(rounds, 1):
            heard = [
                Heard(origin=peer, accepted=accepted, reason="" if accepted else "kernel")
                for peer, accepted in peers.items()
            ]
            ledger.record(round_, heard, time=1.0)
        ledger.close()
    assert "Honest hospitals" not in write_report(run).read_text(encoding="utf-8")
    config = json.loads((run / "config.json").read_text())
    config["settings"]["faults.sites"] = "Ulm"
    (run / "config.json").write_text(json.dumps(config))

    page = write_report(run).read_text(encoding="utf-8")

    (section,) = re.findall(r'<h2 id="honest">.*?</section>', page, re.DOTALL)
    rows = re.findall(r'scope="row"[^>]*>(\d)</th>((?:<td>[^<]*</td>)*)', section)
    found = {int(round_): re.findall(r"<td>([^<]*)</td>", cells) for round_, cells in rows}
    shares = {1: ["100%", "50%"], 2: ["50%", "0%"], 3: ["–", "–"]}
    measured = [json.loads(line) for line in _metrics(run)]
    for round_, told in shares.items():
        values = [
            row["accuracy"] for row in measured
            if row["site"] in ("Bern", "Graz") and row["round"] == round_
            and (row["phase"], row["split"]) == ("personal", "validation")
        ]  # fmt: skip
        assert len(values) == 2
        assert found[round_] == [f"{sum(values) / 2:.3f}", f"{min(values):.3f}", *told]
    assert found.keys() == shares.keys()


def _metrics(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_a_run_without_a_shared_model_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "mixed", settings={"method": "lightyear"})
    page = write_report(run).read_text(encoding="utf-8")
    assert "Personal, after mixing" in page
    assert "as mixed with those of its neighbours" in page
    assert "after local training" not in page
