"""The grid of attacks and rules to look at: docs/images/byzantine.svg. Not a benchmark itself."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

from benchmarks.byzantine_page import NAMES, PLACES, by_mean
from benchmarks.byzantine_table import LOCAL, Row, Runs, complete, rows

FAULTY = 4


def draw(runs: Runs, path: Path) -> None:
    """Draw every rule against every attack with four of eight sites faulty, a panel a place.

    A colour says how far the honest sites' mean accuracy is above or below local-only's, in
    the seeds that both have. In brackets beside a rule: of how few seeds a cell of it is, where
    others have more.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fedapp"
    from matplotlib import pyplot as plt

    table = rows(runs)
    places = [p for p in PLACES if any(f"{p}/{attack}/{FAULTY}" in table for attack in NAMES)]
    figure, panels = plt.subplots(
        1,
        max(1, len(places)),
        figsize=(6 * max(1, len(places)), 5),
        squeeze=False,
        layout="constrained",
    )
    image = None
    if not places:
        panels[0][0].set_axis_off()
    for panel, place in zip(panels[0], places, strict=False):
        halves = {attack: table.get(f"{place}/{attack}/{FAULTY}", {}) for attack in NAMES}
        order = by_mean({rule for row in halves.values() for rule in row}, halves)
        order = sorted(order, key=lambda rule: rule != LOCAL)
        gains = [[_gain(row, rule) for row in halves.values()] for rule in order]
        image = panel.imshow(gains, cmap="RdBu", vmin=-0.3, vmax=0.3, aspect="auto")
        panel.set_xticks(range(len(NAMES)), NAMES.values(), rotation=30, ha="right")
        panel.set_yticks(range(len(order)), [_label(rule, [*halves.values()]) for rule in order])
        panel.set_title(f"{PLACES[place]}, {FAULTY} of 8 sites faulty")
        for i, rule in enumerate(order):
            for j, row in enumerate(halves.values()):
                if rule in row:
                    shade = "white" if abs(gains[i][j]) > 0.2 else "black"
                    text = f"{row[rule]['mean']:.2f}".removeprefix("0")
                    panel.text(j, i, text, ha="center", va="center", color=shade, fontsize=8)
    if image is not None:
        figure.colorbar(image, ax=list(panels[0]), label="accuracy above local-only", shrink=0.8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _gain(row: Row, rule: str) -> float:
    theirs, alone = (row.get(each, {}).get("by_seed", {}) for each in (rule, LOCAL))
    both = sorted(theirs.keys() & alone.keys())
    return fmean(theirs[seed] - alone[seed] for seed in both) if both else math.nan


def _label(rule: str, halves: list[Row]) -> str:
    fewer = [row[rule]["seeds"] for row in halves if rule in row and rule not in complete(row)]
    return f"{rule} ({min(fewer)})" if fewer else rule
