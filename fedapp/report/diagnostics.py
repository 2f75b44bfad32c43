"""The diagnostics over rounds: loss, and what the updates have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from fedapp.report import plots
from fedapp.report.cards import card, legend, mean_series
from fedapp.report.markup import Html, element, join
from fedapp.report.run_data import RunData


@dataclass(frozen=True)
class Diagnostic:
    """One diagnostic plot: what it shows and how to read it."""

    key: str
    title: str
    reading: str
    series: Mapping[str, str] = field(default_factory=dict)  # label -> key of the federation rows
    low: float | None = 0.0
    high: float | None = 1.0
    by_layer: str = ""  # how keys begin whose end is a layer's number: the first, middle and last


DIAGNOSTICS = (
    Diagnostic(
        "overlap",
        "Overlap of subspaces",
        "Do the updates stay in the column space of the shared B? 1: the same space; small steps "
        "alone give that too.",
        {
            "root form, as in released code": "overlap",
            "squared form, as in the paper": "overlap_squared",
        },
    ),
    Diagnostic(
        "cancellation",
        "Cancellation",
        "Length of the summed update over the sum of lengths. 1: nothing cancels; 0: everything.",
        {"cumulative": "cancellation", "this round's work alone": "cancellation_increment"},
    ),
    Diagnostic(
        "cosines",
        "Agreement of directions",
        "Cosine of each hospital's update with the merged one, and of hospitals with each other.",
        {"hospital and merged": "client_global_cosine", "hospital and hospital": "pairwise_cosine"},
        low=-1.0,
    ),
    Diagnostic(
        "consistency",
        "Consistency of the updates",
        "Drift diversity: what the hospitals move, over what the merge of all moves. 1: all move "
        "alike; about their number: their work is unrelated. Below it the mean cosine of the two.",
        {"drift diversity": "drift_diversity", "cosine": "movement_cosine"},
        low=None,
        high=None,
    ),
    Diagnostic(
        "movement",
        "Movement",
        "Squared distance from the received model to a hospital's trained one, the mean over "
        "hospitals.",
        {"hospitals": "client_movement"},
        high=None,
    ),
    Diagnostic(
        "merge",
        "Merge error",
        "Distance of the merged model from the exact mean of the hospitals' models, relative to "
        "that mean.",
        {"merged and exact": "merge_error"},
        high=None,
    ),
    Diagnostic(
        "gsnr",
        "Signal to noise of the gradients",
        "Squared mean over variance of the gradients of a hospital's single records, over the "
        "trained numbers of the model that a round begins with; the mean over hospitals.",
        {"mean of numbers": "gsnr", "median of numbers": "gsnr_median"},
        high=None,
    ),
    Diagnostic(
        "gsnr-layers",
        "Signal to noise by layer",
        "The same over the trained numbers of the first adapted layer, of the one in the middle, "
        "and of the last; those of every layer are in metrics.jsonl.",
        by_layer="gsnr_layer_",
        high=None,
    ),
    Diagnostic(
        "interference",
        "Interference",
        "How far the work of the round before moves the adapted layers' outputs at a hospital: the "
        "others' work beside its own.",
        {"work of the others": "interference", "its own work": "own_effect"},
        high=None,
    ),
    Diagnostic(
        "bases",
        "Directions of no use",
        "Unused: the share of a layer's directions in which a hospital's records hold hardly any "
        "energy. Agreement: how much of what a hospital trains in another has proposed as unused; "
        "1: nobody is disturbed by anybody.",
        {"unused": "insensitive_share", "agreement": "basis_agreement"},
    ),
    Diagnostic(
        "factors",
        "Factor and gate",
        "Factor: by how much a gradient counts, 1 where it is sure. Gate: how much of a hospital's "
        "offset its gradients oppose, at a round's last step; and what the round withdrew.",
        {"factor": "factor_mean", "gate": "gate_mean", "withdrawn": "delta_withdrawn"},
    ),
    Diagnostic(
        "offsets",
        "Size of the hospitals' offsets",
        "Norm of what a hospital adds to the shared model, the mean over hospitals.",
        {"hospitals": "delta_norm"},
        high=None,
    ),
)


def diagnostics_section(run: RunData) -> Html | None:
    """Loss, and what the hospitals' updates have in common, over rounds."""
    made = (_loss(run), *map(partial(_diagnostic, run), DIAGNOSTICS))
    cards = [card_ for card_ in made if card_ is not None]
    if not cards:
        return None
    note = (
        "Computed from the updates as they arrive, before the merge, and averaged over the adapted "
        "layers. The vertical scales zoom on the data. A number that is not defined, such as the "
        "overlap in round 1 while the shared B is zero, is left out."
    )
    guide = element(
        "div",
        element("h3", "How to read the diagnostics"),
        element("p", note, class_="quiet"),
        class_="card guide",
    )
    return element(
        "section",
        element("h2", "Diagnostics", id="diagnostics"),
        element("div", guide, *cards, class_="grid"),
        aria_labelledby="diagnostics",
    )


def _loss(run: RunData) -> Html | None:
    series = {
        label: points
        for label, phase, key in (
            ("training", "personal", "train_loss"),
            ("validation, as received", "received", "loss"),
            ("validation, personal", "personal", "loss"),
        )
        if (points := mean_series([run.curve(s, phase, key) for s in run.site_names]))
    }
    if not series:
        return None
    reading = "Mean over hospitals; the penalty of a method is not part of it."
    item = Diagnostic("loss", "Loss", reading, {}, high=None)
    return _diagnostic_card(item, series)


def _diagnostic(run: RunData, item: Diagnostic) -> Html | None:
    keys = {**item.series, **_layers(run, item.by_layer)}
    series = {label: points for label, key in keys.items() if (points := run.series(key))}
    return _diagnostic_card(item, series) if series else None


def _layers(run: RunData, prefix: str) -> dict[str, str]:
    """Return the keys of three layers at most: a card has as many colours."""
    keys = {key for row in run.federation_rows for key in row} if prefix else set()
    ends = (key.removeprefix(prefix) for key in keys if key.startswith(prefix))
    numbers = sorted(int(end) for end in ends if end.isdecimal())
    chosen = {numbers[0], numbers[len(numbers) // 2], numbers[-1]} if numbers else set()
    return {f"layer {number}": f"{prefix}{number}" for number in sorted(chosen)}


def _diagnostic_card(item: Diagnostic, series: Mapping[str, plots.Series]) -> Html:
    svg = plots.diagnostic(
        series,
        key=f"diagnostic-{item.key}",
        title=f"{item.title} over rounds",
        low=item.low,
        high=item.high,
    )
    entries = list(zip(("first", "second", "third"), series, strict=False))
    above = join(element("p", item.reading, class_="quiet"), legend(entries))
    return card(item.title, above, svg)
