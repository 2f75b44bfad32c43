"""How far others' work moves a site's layers, against the dense product on every token."""

import numpy as np
import pytest
import torch
from tiny_residents import by_hand, items_of
from tiny_residents import tiny_resident as make

from client_app.interference import EACH, OTHERS, OWN, measure_interference
from fedapp.adapter import Adapter, LoraPair
from fedapp.errors import UpdateRefused


def work(resident, rank, seed):
    rng = np.random.default_rng(seed)
    return Adapter(
        {
            name: LoraPair(
                rng.standard_normal((layer.out_features, rank)).astype(np.float32),
                rng.standard_normal((rank, layer.in_features)).astype(np.float32),
                0.3,
            )
            for name, layer in resident.parameters.layers.items()
        }
    )


def measure(resident, config, received):
    items = items_of(resident)
    return measure_interference(resident, items, config, received, site="north", round=2)


@pytest.mark.parametrize("targets", ["query,value", "query,intermediate.dense"])
def test_it_is_the_length_of_the_products_on_the_activations(tmp_path, targets):
    resident, config = make(tmp_path, "bert", targets)
    received = {OTHERS: work(resident, 5, 0), OWN: work(resident, 2, 1)}

    found = measure(resident, config, received)

    rows = by_hand(resident, items_of(resident))
    for number, name in (("interference", OTHERS), ("own_effect", OWN)):
        squares = []
        for layer, h_tn in rows.items():
            pair = received[name].pairs[layer]
            product = pair.scaling * torch.tensor(pair.b_mr.astype(float) @ pair.a_rn)
            squares.append(float((h_tn @ product.T).square().sum(dim=1).mean()))
        assert found[number] == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-5)


def test_the_sum_of_the_lengths_of_every_single_work(tmp_path):
    resident, config = make(tmp_path, "bert")
    works = [work(resident, 3, 0), work(resident, 2, 1)]
    right = {
        name: np.stack([
            np.pad(w.pairs[name].scaling * np.linalg.qr(w.pairs[name].b_mr)[1] @ w.pairs[name].a_rn,
                   ((0, 3 - w.pairs[name].rank), (0, 0)))
            for w in works
        ]).astype(np.float32)
        for name in works[0].pairs
    }  # fmt: skip
    received = {OTHERS: works[0], OWN: works[1], EACH: Adapter({}, right)}

    found = measure(resident, config, received)

    # The "others" are the first, "own" the second of the two.
    assert found["interference_sum"] == pytest.approx(
        found["interference"] + found["own_effect"], rel=1e-5
    )
    flat = {name: tensor[0] for name, tensor in right.items()}
    with pytest.raises(UpdateRefused, match="does not fit any layer"):
        measure(resident, config, {**received, EACH: Adapter({}, flat)})


def test_work_in_directions_that_nothing_uses_disturbs_nobody(tmp_path):
    resident, config = make(tmp_path, "bert")
    rows = by_hand(resident, items_of(resident))
    received = {OTHERS: work(resident, 2, 0), OWN: work(resident, 2, 1)}
    quiet = {}
    for name, pair in received[OTHERS].pairs.items():
        _, _, vt = np.linalg.svd(rows[name].numpy(), full_matrices=True)
        quiet[name] = LoraPair(pair.b_mr, vt[-2:].astype(np.float32), 1.0)

    found = measure(resident, config, {**received, OTHERS: Adapter(quiet)})

    assert found["interference"] < 0.05 * found["own_effect"]


def test_without_work_of_its_own_or_of_others_nothing_is_measured(tmp_path):
    resident, config = make(tmp_path, "bert")
    one = work(resident, 2, 0)
    for received in ({}, {OTHERS: one}, {OWN: one}):
        assert measure(resident, config, received) == {}


def test_work_of_another_model_is_refused(tmp_path):
    resident, config = make(tmp_path, "bert")
    one = work(resident, 2, 0)
    pairs = dict(one.pairs)
    pairs.pop(next(iter(pairs)))
    with pytest.raises(UpdateRefused, match="does not fit layer"):
        measure(resident, config, {OTHERS: Adapter(pairs), OWN: one})
