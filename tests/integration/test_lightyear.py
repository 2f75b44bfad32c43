"""LIGHTYEAR by `fedapp run`: sites in two Ray workers, models over loopback, what comes of it."""

from __future__ import annotations

import json
import re

import pytest
from desk import Desk
from interface import ROOT

from benchmarks.local_grid import run_here
from fedapp.report.ledgers import read_ledgers
from fedapp.results import RunFolder

pytestmark = pytest.mark.slow

QUICK = {
    "method": "lightyear",
    "model.source": "embedded:tiny-encoder",
    "data.max-examples": 40,
    "federation.rounds": 2,
    "federation.local-only": False,
    "train.threads": 1,
}


def test_a_simulation_gives_the_same_bits_in_whichever_process_a_site_works(desk: Desk) -> None:
    settings = " ".join(f"{key}={json.dumps(value)}" for key, value in QUICK.items())

    done = desk.fedapp("run", ROOT, "--name", "agreeing", "-c", settings)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    folder = RunFolder(desk.here / "runs" / "agreeing")
    there = json.loads(folder.summary_file.read_text())
    here, _ = run_here(QUICK)
    assert here["sites"] == there["sites"]
    notes: list[str] = []
    ledgers = read_ledgers(folder.ledger, notes)
    assert notes == []
    assert {node: [e.round for e in entries] for node, entries in ledgers.items()} == {
        site: [1, 2] for site in there["sites"]
    }
    page = folder.report_file.read_text(encoding="utf-8")
    assert len(re.findall(r"How the gates of .*? judged its peers over rounds", page)) >= 4
    assert "distance of the heads at most 1.1; distance at most 3" in page
    assert "Who was refused by what" in page
    assert not (folder.path / "post").exists()


def test_of_a_faulty_site_everybody_hears_and_nobody_takes_anything(desk: Desk) -> None:
    faulty = {
        **QUICK,
        "faults.sites": "Hungary",
        "faults.attack": "scaling",
        "faults.factor": -20.0,
    }
    settings = " ".join(f"{key}={json.dumps(value)}" for key, value in faulty.items())

    done = desk.fedapp("run", ROOT, "--name", "rehearsed", "-c", settings)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    folder = RunFolder(desk.here / "runs" / "rehearsed")
    there = json.loads(folder.summary_file.read_text())
    assert there["rehearsal"].startswith("REHEARSAL OF ATTACKS: Hungary")
    assert (sorted(there["faulty"]), len(there["sites"])) == (["Hungary"], 3)
    here, _ = run_here(faulty)
    assert here["sites"] == there["sites"]
    rounds = [row for row in folder.read_metrics() if row["phase"] == "federation"]
    assert [row["faulty"] for row in rounds] == [{"Hungary": "scaling"}] * 2
    notes: list[str] = []
    ledgers = read_ledgers(folder.ledger, notes)
    honest = sorted(there["sites"])
    accepted = dict.fromkeys(honest, 0)
    for site in honest:
        for entry in ledgers[site]:
            heard = {one.origin: one for one in entry.heard}
            assert sorted(heard) == sorted({*honest, "Hungary"} - {site})
            assert not heard["Hungary"].accepted
            assert "distance" in heard["Hungary"].reason
            accepted[site] += sum(one.accepted for one in entry.heard)
    assert notes == []
    assert all(accepted.values()), "the honest ones go on together"
    page = folder.report_file.read_text(encoding="utf-8")
    assert "rehearsal of attacks" in page
    assert "Personal models of the 3 honest hospitals" in page
