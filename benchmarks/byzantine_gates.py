"""LIGHTYEAR's gates, one kind at a time and all together, against the attacks of the grid.

Usage:
    python -m benchmarks.byzantine_gates run --data writer_digits.npz
    python -m benchmarks.byzantine_gates page

What the default is compared with: one kind of gate alone (the kernel calibrated, or fixed at 0.85;
the predictions; the distances, of LoRA those of the whole and of the head), and all at once.
The default sets three for a model that is trained whole, all of them but the fixed kernel, and for
LoRA the distances alone, so that two of these choices repeat it, which shows that nothing else
differs: of 132 such runs 131 are the same to the last digit, and one but for an answer at two
sites. Places, sites, attacks and seeds are those of benchmarks/byzantine.py, and so are the
default's own runs and the yardsticks; faulty are none, or as many of the eight as there are claims
about.

Results: benchmarks/results/byzantine_gates.json; `page` writes docs/gates.md.
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path

from benchmarks.byzantine import ATTACKS, DOCS, GATES, RESULTS, USUAL, Runner, cells, run_missing
from benchmarks.byzantine_gates_page import FAULTY, kept, page
from benchmarks.sweep import Results

SEEDS = (0, 1, 2)
RUNS = Results(
    Path(__file__).resolve().parent / "results" / "byzantine_gates.json",
    lambda runs: {"gates": GATES, "claims": kept(runs, _grid())},
)
_grid = cache(RESULTS.load)  # asked for at every save, and not changed by these runs


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("run", "page"))
    parser.add_argument("--data", default="", help="npz file of images by who wrote them")
    parser.add_argument("--places", nargs="+", default=list(USUAL), choices=USUAL)
    parser.add_argument("--hours", type=float, default=24.0, help="no run begins after so long")
    options = parser.parse_args()
    places = USUAL if options.stage == "page" else options.places
    todo = cells(places, list(GATES), list(ATTACKS), SEEDS, FAULTY)
    if options.stage == "page":
        known = RUNS.load()
        if missing := [cell.key for cell in todo if cell.key not in known]:
            parser.error(f"{len(missing)} runs are missing, the first is {missing[0]}; run them")
        (DOCS / "gates.md").write_text(page(known, _grid()), encoding="utf-8")
        return
    if "writers" in options.places and not options.data:
        parser.error("the writers need --data, an npz file with images, labels and writer")
    run_missing(todo, RUNS, Runner(options.data), 3600 * options.hours, most=0)


if __name__ == "__main__":
    main()
