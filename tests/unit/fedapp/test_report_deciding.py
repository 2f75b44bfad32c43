"""The heat maps' scores are those that decide in the run, and every cell leads to its row."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_run

from fedapp.gates import Gates, Scores, decide
from fedapp.gossip.ledger import Heard, Ledger, LedgerEntry
from fedapp.report import agreement, write_report
from fedapp.report.agreement import agreement_section
from fedapp.report.deciding import Deciding, deciding
from fedapp.report.heat_map import heat_map
from fedapp.report.ledgers import Ledgers
from fedapp.report.refused import MOST_ROWS

SVG = "{http://www.w3.org/2000/svg}"
LORA = {"method": "lightyear"}
WHOLE = {
    "method": "lightyear", "model.trainable": "all", "model.task": "image-classification",
    "model.source": "embedded:tiny-cnn",
}  # fmt: skip
NAMES = ("head", "distance", "agreement", "calibrated", "prediction")


def of(settings: dict[str, Any], *rows: Heard) -> Deciding:
    row = Heard(origin="Ulm", accepted=True, scores=dict.fromkeys(NAMES, 0.5))
    return deciding(settings, lambda: rows or (row,))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (LORA, ["head", "distance"]),
        ({**LORA, "lightyear.prediction": 0.1}, ["head", "distance", "prediction"]),
        ({**LORA, "lightyear.head-distance": 0.0}, ["distance"]),
        (WHOLE, ["distance", "calibrated", "prediction"]),
        ({**WHOLE, "lightyear.kernel-gate": "fixed"}, ["distance", "agreement", "prediction"]),
        ({**LORA, "lightyear.preset": "paper"}, []),
        ({**LORA, "lightyear.distance": 0.0, "lightyear.head-distance": 0.0}, []),
        ({"method": "balance"}, []),
        ({"method": "lightyear", "of.another": "version"}, []),
        ({}, []),
    ],
)
def test_the_scores_drawn_are_those_of_the_gates_that_are_set(
    settings: dict[str, Any], names: list[str]
) -> None:
    drawn = of(settings)

    assert [limit.score for limit in drawn.limits] == names
    row = Heard(origin="Ulm", accepted=True, scores={"agreement": 0.7})
    if not names:
        assert drawn.value(row) == 0.7


def test_the_caption_says_which_scores_decide_and_where_the_limit_is() -> None:
    assert "distance of the heads at most 1.1; distance at most 3" in of(LORA).guide
    assert "at least 0.6 is accepted" in of({**LORA, "lightyear.preset": "paper"}).guide
    none = {"lightyear.distance": 0.0, "lightyear.head-distance": 0.0}
    assert "decides nothing in this run" in of({**LORA, **none}).guide


def test_a_model_that_the_gates_let_in_and_that_spoilt_the_mix_is_drawn_faintest() -> None:
    """Dark is who was accepted."""
    scores = {"head": 0.1, "distance": 0.4, "agreement": 0.9}
    passed = Heard(origin="Ulm", accepted=True, scores=scores)
    spoilt = Heard(origin="Ulm", accepted=False, reason="unmixable", scores=scores)
    drawn = of(LORA, passed, spoilt)

    assert drawn.value(passed) == pytest.approx(1 - 0.4 / 6)
    assert drawn.value(spoilt) == 0
    assert drawn.value(Heard(origin="Ulm", accepted=False, reason="unmixable")) is None
    assert "could not be mixed, is drawn faintest" in drawn.guide
    alone = of({"method": "balance"}, spoilt)
    assert alone.value(spoilt) == 0.9, "the agreement itself, where it is what is shown"


def test_without_a_head_predictions_decide() -> None:
    """The head's distance is exactly 0 then, of everybody."""
    scores = {"head": 0.0, "distance": 0.4, "prediction": 0.3}
    drawn = of(LORA, Heard(origin="Ulm", accepted=True, scores=scores))

    assert [limit.score for limit in drawn.limits] == ["distance", "prediction"]


@pytest.mark.parametrize(
    ("settings", "gates"),
    [
        (LORA, Gates(None, False, None, distance=3.0, head=1.1)),
        (WHOLE, Gates(0.4, True, prediction=0.2, distance=0.9)),
        (
            {**WHOLE, "lightyear.kernel-gate": "fixed", "lightyear.kernel": 1.0},
            Gates(1.0, False, prediction=0.2, distance=0.9),
        ),
        (
            {**WHOLE, "lightyear.kernel": -0.5, "lightyear.prediction": 1.0},
            Gates(-0.5, True, prediction=1.0, distance=0.9),
        ),
    ],
)
def test_half_a_shade_parts_who_passes_from_who_is_refused(
    settings: dict[str, Any], gates: Gates
) -> None:
    chance, drawn = random.Random(0), of(settings)
    for _ in range(500):
        kernel = chance.choice([1.0, chance.random()])
        scores = Scores(
            kernel=kernel, null=chance.random() * 0.9,
            prediction=chance.choice([1.0, 0.2, chance.uniform(-1, 1)]),
            distance=chance.choice([0.9, 3.0, chance.random() * 4, float("inf")]),
            head=chance.choice([1.1, chance.random() * 3]),
        )  # fmt: skip
        decision = decide("Ulm", scores, gates)
        row = decision.row()
        told = {"agreement": row["kernel"], **{n: row[n] for n in NAMES if n != "agreement"}}
        heard = Heard(origin="Ulm", accepted=decision.is_accepted, scores=told)
        value = drawn.value(heard)

        assert value is not None
        assert 0 <= value <= 1
        assert (value >= 0.5) == decision.is_accepted, (scores, value)


def squares(svg: ET.Element) -> Iterator[tuple[float, float, str, str | None]]:
    """Centre, text and target of every cell that says something."""
    for group in svg.iter(f"{SVG}g"):
        if group.get("class") != "cells":
            continue
        left, top, wide, high = map(float, re.findall(r"[\d.]+", group.get("transform", "")))
        links = {path: a.get("href") for a in group.iter(f"{SVG}a") for path in a}
        for path in group.iter(f"{SVG}path"):
            place = re.fullmatch(r"M(\d+) (\d+)h1v1h-1z", path.get("d", ""))
            assert place is not None
            x, y = left + (int(place[1]) + 0.5) * wide, top + (int(place[2]) + 0.5) * high
            yield x, y, path.findtext(f"{SVG}title") or "", links.get(path)


def drawn_cells(svg: ET.Element) -> list[tuple[float, float]]:
    """Centres of the cells as matplotlib has drawn them."""
    found = []
    for path in svg.iter(f"{SVG}path"):
        if "opacity" not in path.get("style", "") and "var(--line)" not in path.get("style", ""):
            continue
        for part in path.get("d", "").split("M")[1:]:
            numbers = [float(n) for n in re.findall(r"-?[\d.]+", part)]
            xs, ys = numbers[::2], numbers[1::2]
            if len(xs) >= 4 and part.strip().lower().endswith("z"):
                found.append(((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2))
    return sorted(found)


def test_what_a_cell_says_lies_over_the_cell() -> None:
    rounds = range(3, 9)
    cells = {f"p{y}": {r: (r * y % 7) / 7 for r in rounds if (r + y) % 3} for y in range(5)}
    told = {
        row: {r: (f"{row} <{r}>", f"row-{r}" if r > 5 else None) for r in of_row}
        for row, of_row in cells.items()
    }
    text = heat_map(cells, {"p1": [4]}, (3, 8), key="k", title="t", told=told)

    svg = ET.fromstring(text)
    found = list(squares(svg))
    centres = sorted((x, y) for x, y, _, _ in found)
    assert len(centres) == sum(map(len, cells.values()))
    for got, drawn in zip(centres, drawn_cells(svg), strict=True):
        assert got == pytest.approx(drawn, abs=0.05)
    assert {(text, target) for _, _, text, target in found} == {
        (text, None if target is None else f"#{target}")
        for of_row in told.values()
        for text, target in of_row.values()
    }


def heard(peer: str, round_: int) -> Heard:
    near = (round_ + len(peer)) % 5 != 0
    return Heard(
        origin=peer, accepted=near, reason="" if near else "head", weight=0.01 if near else 0.0,
        digest=f"{round_:02x}" * 32, scores={"agreement": 0.5, "head": 0.3 if near else 2.0},
    )  # fmt: skip


def federation(sites: int, rounds: int, nodes: int = 99) -> dict[str, list[LedgerEntry]]:
    names = [f"site {number:02d}" for number in range(sites)]
    return {
        node: [
            LedgerEntry(
                run="r", node=node, round=r, time=1.0,
                heard=tuple(heard(peer, r) for peer in names if peer != node),
            )
            for r in range(1, rounds + 1)
        ]
        for node in names[:nodes]
    }  # fmt: skip


def maps(section: str) -> Iterator[ET.Element]:
    for found in re.findall(r"<svg[^>]*agreement-\d+-title.*?</svg>", section, re.DOTALL):
        yield ET.fromstring(found)


def cells_of(ledgers: Ledgers) -> tuple[str, list[tuple[str, str | None]]]:
    section = str(agreement_section(ledgers, LORA))
    told = [(text, to) for svg in maps(section) for _, _, text, to in squares(svg)]
    return section, told


def test_every_cell_says_its_row_also_when_the_table_has_no_room_for_it() -> None:
    ledgers = federation(8, 12)  # 672 rows
    section, told = cells_of(ledgers)

    assert len(told) == 8 * 7 * 12 > MOST_ROWS
    for node, entries in ledgers.items():
        for entry in entries:
            for one in entry.heard:
                decision = "accepted" if one.accepted else "refused: head"
                head = "0.30" if one.accepted else "2.00"
                (_, target), *more = [
                    each for each in told
                    if each[0] == f"{node}, round {entry.round}: {one.origin} {decision}, weight "
                    f"{one.weight:.2f}, agreement 0.50, head {head}, update {one.digest[:12]}"  # type: ignore[index]
                ]  # fmt: skip
                assert not more
                if target is not None:
                    row = re.search(rf'<tr id="{target[1:]}">(.*?)</tr>', section)
                    assert row is not None
                    named = [str(node), str(one.origin), f"<td>{entry.round}</td>"]
                    assert all(each in row[1] for each in named)
    linked = [target for _, target in told if target]
    assert len(linked) == len(set(linked)) == MOST_ROWS
    assert "272 more are in the ledgers" in section


def test_of_many_hospitals_and_rounds_the_page_stays_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agreement, "MOST_TOLD", 3000)
    many, told = cells_of(federation(25, 14, nodes=13))

    assert 0.9 * 3000 < len(told) <= 3000
    assert sum(len(text) for text, _ in told) < 150 * len(told)
    assert len(many) < 1_200_000  # of which the tables have 300,000
    since = re.search(r"from round (\d+) on; the older ones are in the ledgers", many)
    assert since is not None
    rounds = {int(re.findall(r"round (\d+)", text)[0]) for text, _ in told}
    assert rounds == set(range(int(since[1]), 15))


def test_a_lora_run_shows_its_heads_and_not_the_agreement(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", settings=LORA)
    ledger = Ledger(run / "ledger" / "Bern.jsonl", "run", "Bern")
    for round_, head in ((1, 0.0), (2, 1.1), (3, 2.2)):
        scores = {"agreement": 0.9, "head": head, "distance": 0.0}
        reason = "head" if head > 1.1 else ""
        one = Heard(origin="Ulm", accepted=not reason, reason=reason, scores=scores)
        ledger.record(round_, [one], time=1.0)
    ledger.close()

    page = write_report(run).read_text(encoding="utf-8")

    (svg,) = maps(page)
    assert "Ulm: mean 0.50 over 3 rounds, 1 refused." in (next(svg.iter(f"{SVG}desc")).text or "")
    assert "How the gates of Bern judged its peers over rounds" in page
    assert "on the limit" in page
    assert "agreement 0.5<" not in page
