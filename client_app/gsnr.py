"""How far a site's records agree on where to go: the gradient signal to noise ratio."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from client_app.batching import ordered_batches
from client_app.methods.base import LocalRule
from client_app.record_gradients import Gradients, NotPerRecord, one_by_one, record_gradients
from client_app.runtime import full_precision
from client_app.tasks.generation import spread
from fedapp.config import RunConfig

if TYPE_CHECKING:
    from client_app.models import ResidentModel

log = logging.getLogger(__name__)

Items = Sequence[Mapping[str, Any]]

EPSILON = 1e-24
"""Added to a variance of gradients."""
LARGEST = 1e9
"""A ratio is cut here: that of a number on which all records agree has no bound."""
MOST_LAYERS = 64


def measure_gsnr(
    resident: ResidentModel, items: Items, rule: LocalRule, config: RunConfig
) -> dict[str, float]:
    """Return the ratio of the loaded model on the site's probe set, if it is to be measured.

    ``r_j = E[g_j]^2 / (Var[g_j] + eps)`` for every trained number j, over the gradients g of the
    single records' own losses, in evaluation mode. The probe set is the same every round:
    ``federation.gsnr`` evenly spaced training records. A number whose gradient is zero for every
    record (A, while B is zero) has no ratio and is left out.

    Parameters
    ----------
    resident : ResidentModel
        Loaded with what the site begins the round with; nothing of it changes.
    items : sequence of mapping
        Prepared training records.
    rule : LocalRule
        Says what is trained.
    config : RunConfig

    Returns
    -------
    dict of str to float
        ``gsnr`` and ``gsnr_median`` over the numbers; ``gsnr_layer_N``, the mean over those of the
        model's layer N (64 evenly spaced ones of more), and ``gsnr_heads``; ``gsnr_records``.

    References
    ----------
    Liu et al., Understanding Why Neural Networks Generalize Well Through GSNR of Parameters,
    arXiv 2001.07384, definition 1.
    """
    probe = spread(items, config.federation.gsnr) if config.federation.gsnr else []
    if len(probe) < 2:
        return {}
    named = resident.parameters.named_arrays()
    wanted = {name: parameter for name, parameter in named if rule.trainable(name)}
    moments = _Moments()
    with full_precision():
        for gradients in _gradients(resident, probe, wanted, config.train.batch_size):
            moments.add(gradients)
    ratios = moments.ratios(len(probe))
    if not ratios:
        return {}
    whole = np.concatenate(list(ratios.values()))
    return {
        "gsnr": float(whole.mean()),
        "gsnr_median": float(np.median(whole)),
        **_by_layer(ratios),
        "gsnr_records": float(len(probe)),
    }


def _gradients(
    resident: ResidentModel, probe: Items, wanted: dict[str, Parameter], size: int
) -> Iterator[Gradients]:
    """Yield the gradients of some records at a time."""
    task = resident.task

    def loss(records: Items) -> Tensor:
        batch = {k: v.to(resident.device) for k, v in task.collate(records).items()}
        return task.loss(resident.model, batch)

    singly = False
    for indices in ordered_batches(probe, size):
        records = [probe[index] for index in indices]
        terms_n = torch.tensor([float(r.get("terms", 1)) for r in records], device=resident.device)
        if not singly:
            try:
                shares_n = terms_n / terms_n.sum()
                yield record_gradients(resident.model, wanted, partial(loss, records), shares_n)
                continue
            except NotPerRecord as reason:
                log.info("gradients of single records are computed one by one: %s", reason)
                singly = True
        yield from one_by_one(wanted, [partial(loss, [record]) for record in records])


class _Moments:
    """Sums of the gradients and of their squares, in fp64."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, gradients: Gradients) -> None:
        for name, gradient in gradients.items():
            flat_nd = gradient.detach().double().flatten(1)
            more = flat_nd.sum(0), flat_nd.square().sum(0)
            first, second = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = first + more[0], second + more[1]

    def ratios(self, records: int) -> dict[str, NDArray[np.float64]]:
        found = {}
        for name, (first_d, second_d) in self._sums.items():
            live = second_d > 0
            mean_d, square_d = first_d[live] / records, second_d[live] / records
            variance_d = (square_d - mean_d.square()).clamp(min=0)
            ratio_d = (mean_d.square() / (variance_d + EPSILON)).clamp(max=LARGEST)
            if len(ratio_d):
                found[name] = ratio_d.cpu().numpy()
        return found


def _by_layer(ratios: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    layers: dict[int, list[NDArray[np.float64]]] = {}
    heads: list[NDArray[np.float64]] = []
    for name, ratio_d in ratios.items():
        number = re.search(r"\.(\d+)\.", name)
        (layers.setdefault(int(number[1]), []) if number else heads).append(ratio_d)
    means = {
        f"gsnr_layer_{number}": float(np.concatenate(layers[number]).mean())
        for number in spread(sorted(layers), MOST_LAYERS)
    }
    return means | ({"gsnr_heads": float(np.concatenate(heads).mean())} if heads else {})
