"""How far the others' work of the last round moves what this site's layers compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from client_app.activations import LayerInput, collect_inputs
from fedapp.adapter import Adapter, LoraPair
from fedapp.config import RunConfig
from fedapp.errors import UpdateRefused
from fedapp.seeds import derive_seed

if TYPE_CHECKING:
    from client_app.models import ResidentModel

OTHERS, OWN, EACH = "others_work", "own_work", "each_work"  # as in ``server_app.interference``

Factors = Mapping[str, torch.Tensor]
"""``s R A`` of every layer."""


def measure_interference(
    resident: ResidentModel,
    items: Sequence[Mapping[str, Any]],
    config: RunConfig,
    received: Mapping[str, Adapter],
    *,
    site: str,
    round: int,
) -> dict[str, float]:
    """Return ``interference`` and ``own_effect`` of the last round's merge at this site.

    ``interference`` is ``||sum_{k != j} p_k DW_k h_j||``, the root mean square over tokens and
    layers, and ``own_effect`` the same of ``p_j DW_j``. Both come from second moments,
    ``||B A h||^2 = tr(R A C A^T R^T)`` with ``B = Q R``. If the ``R A`` of every single other site
    came along, ``interference_sum`` is ``sum_{k != j} ||p_k DW_k h_j||``, their sum.

    Parameters
    ----------
    resident : ResidentModel
        Loaded with the model of the round.
    items : sequence of mapping
        Prepared training records.
    config : RunConfig
    received : mapping of str to Adapter
        Without `OTHERS` or `OWN` (the site did not take part in the last round), nothing is
        measured.
    site, round
    """
    works = {
        number: received[name]
        for number, name in (("interference", OTHERS), ("own_effect", OWN))
        if name in received
    }
    if len(works) < 2:
        return {}
    seed = derive_seed(config.seed, "interference", site, round)
    inputs = collect_inputs(resident, items, config, tokens=config.dysco.tokens, seed=seed)
    numbers = {
        number: _effect({name: _right(pair) for name, pair in work.pairs.items()}, inputs)
        for number, work in works.items()
    }
    if EACH in received:
        numbers["interference_sum"] = sum(_effect(one, inputs) for one in _singles(received[EACH]))
    return numbers


def _singles(each: Adapter) -> list[Factors]:
    """Take the right factors of every single site apart."""
    stacks = {name: torch.tensor(tensor).double() for name, tensor in each.tensors.items()}
    counts = {len(stack) for stack in stacks.values() if stack.ndim == 3}
    if len(counts) != 1 or any(stack.ndim != 3 for stack in stacks.values()):
        raise _misfit("any layer")
    return [{name: stack[k] for name, stack in stacks.items()} for k in range(counts.pop())]


def _effect(factors: Factors, inputs: Sequence[LayerInput]) -> float:
    squares = [
        _energy(factors, layer, found) / found.tokens for found in inputs for layer in found.layers
    ]
    return math.sqrt(max(0.0, sum(squares) / len(squares)))


def _energy(factors: Factors, layer: str, found: LayerInput) -> float:
    factor = factors.get(layer)
    if factor is None or factor.shape[1] != found.features:
        raise _misfit(f"layer '{layer}'")
    return found.energy(factor)


def _misfit(layer: str) -> UpdateRefused:
    return UpdateRefused(
        f"the coordinator's work of other sites does not fit {layer}; run the same fedapp version "
        "everywhere",
        reason="wrong-layout",
    )


def _right(pair: LoraPair) -> torch.Tensor:
    b_mr, a_rn = torch.tensor(pair.b_mr).double(), torch.tensor(pair.a_rn).double()
    r_rr: torch.Tensor = torch.linalg.qr(b_mr, mode="r").R
    return pair.scaling * (r_rr @ a_rn)
