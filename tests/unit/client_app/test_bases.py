"""What a site proposes before a round of dysco."""

import numpy as np
import pytest
import torch
from tiny_residents import by_hand, items_of
from tiny_residents import tiny_resident as make

from client_app.activations import LayerInput, Sample, collect_inputs
from client_app.bases import activation_seed, decomposing, site_bases
from client_app.evaluation import evaluate
from client_app.folding import Folding
from fedapp.adapter import Adapter, LoraPair
from fedapp.errors import TrainingError
from fedapp.subspaces import orthonormality_error


def propose(resident, config, site="north", round=1, items=None):
    items = items_of(resident) if items is None else items
    seed = activation_seed(config, site, round)
    inputs = collect_inputs(resident, items, config, tokens=config.dysco.tokens, seed=seed)
    return site_bases(inputs, config, site=site, round=round)


def energy(rows, basis):
    """Share of the activations' energy that a unit row of the basis holds, on average."""
    return float((rows @ torch.tensor(basis).double().T).square().sum() / rows.square().sum())


@pytest.mark.parametrize(("tokens", "basis"), [(1024, "rotated"), (9, "rotated"), (9, "eigh")])
def test_orthonormal_rows_that_the_activations_do_not_use(tmp_path, tokens, basis):
    resident, config = make(tmp_path, "bert", **{"dysco.tokens": tokens, "dysco.basis": basis})

    found = propose(resident, config)

    assert list(found.bases.tensors) == list(resident.parameters.layers)
    assert not found.bases.pairs
    rows = by_hand(resident, items_of(resident))
    for name, a_rn in found.bases.tensors.items():
        assert (a_rn.dtype, a_rn.shape) == (np.float32, (2, 32))
        assert orthonormality_error(a_rn) < 1e-6
        if tokens == 1024:
            assert energy(rows[name], a_rn) < 0.01
    assert found.numbers["basis_tokens"] == min(tokens, 34)


def test_every_layer_site_and_round_has_its_own_rotation_in_one_subspace(tmp_path):
    resident, config = make(tmp_path, "bert")
    first = propose(resident, config).bases
    assert first.digest() == propose(resident, config).bases.digest()
    query, value = list(first.tensors.values())[:2]
    assert np.abs(query - value).max() > 0.1, "one input, two layers"
    for other in (propose(resident, config, round=2), propose(resident, config, site="south")):
        assert np.abs(query - next(iter(other.bases.tensors.values()))).max() > 0.1
    eigh = config.with_changes({"dysco.basis": "eigh"})
    one, two = propose(resident, eigh, round=1).bases, propose(resident, eigh, round=2).bases
    assert one.digest() == two.digest(), "all tokens are looked at, so nothing is drawn"


def looked_at(resident, config, complete, tokens=1024):
    """What a site's evaluation shows, with the training records for what is missing."""
    items = items_of(resident)
    seed = activation_seed(config, "north", 1)
    sample = Sample(
        resident, items[:2], items[2:], config, tokens=tokens, seed=seed, complete=complete
    )
    evaluate(resident, items[:2], config, resident.device, sample.watch)
    return sample.inputs()


@pytest.mark.parametrize("tokens", [1024, 9])
def test_what_was_started_during_the_forward_pass_is_the_same(tmp_path, tokens):
    resident, config = make(tmp_path, "bert", **{"dysco.tokens": tokens})
    later = site_bases(looked_at(resident, config, None, tokens), config, site="north", round=1)
    with decomposing(config) as started:
        inputs = looked_at(resident, config, started.start, tokens)
        sooner = site_bases(inputs, config, site="north", round=1, decompositions=started)
    assert sooner.bases.digest() == later.bases.digest()


def test_an_input_is_complete_once_and_before_the_layers_behind_it(tmp_path):
    resident, config = make(tmp_path, "bert")
    seen, order = [], []
    names = list(resident.parameters.layers)
    handle = resident.parameters.layers[names[-1]].register_forward_hook(
        lambda *_: order.append("last layer")
    )
    inputs = looked_at(resident, config, lambda found: (seen.append(found), order.append("input")))
    handle.remove()
    assert [id(found) for found in seen] == [id(found) for found in inputs]
    assert order.index("input") < len(order) - 1 - order[::-1].index("last layer")


def test_rows_that_come_after_an_input_was_complete_are_not_forgotten(tmp_path):
    _, config = make(tmp_path, "bert")
    rng = torch.Generator().manual_seed(0)
    found = LayerInput(["layer"])
    found.add(torch.randn(40, 32, generator=rng), 40)
    with decomposing(config) as started:
        started.start(found)
        found.add(torch.randn(40, 32, generator=rng), 40)
        basis = site_bases([found], config, site="north", round=1, decompositions=started)
    again = site_bases([found], config, site="north", round=1)
    assert basis.bases.digest() == again.bases.digest()


@pytest.mark.parametrize(("tokens", "basis"), [(40, "rotated"), (9, "rotated"), (9, "eigh")])
def test_activations_that_are_not_finite_are_told_from_the_thread_too(tmp_path, tokens, basis):
    _, config = make(tmp_path, "bert", **{"dysco.basis": basis})
    found = LayerInput(["layer"])
    found.add(torch.full((tokens, 32), torch.nan), tokens)
    with decomposing(config) as started:
        started.start(found)
        with pytest.raises(TrainingError, match="what layer 'layer' sees must be finite"):
            site_bases([found], config, site="north", round=1, decompositions=started)


def test_more_rows_but_never_more_than_features(tmp_path):
    resident, config = make(tmp_path, "bert", **{"dysco.rows": 40})
    for a_qn in propose(resident, config).bases.tensors.values():
        assert a_qn.shape == (32, 32)
        assert orthonormality_error(a_qn) < 1e-6


def test_the_bases_are_those_of_the_model_with_what_was_folded(tmp_path):
    resident, config = make(tmp_path, "bert")
    delta = Adapter(
        {
            name: LoraPair(np.eye(32, 4, dtype=np.float32), np.eye(4, 32, dtype=np.float32), 3.0)
            for name in resident.parameters.layers
        }
    )
    plain = propose(resident, config).bases
    with Folding(resident) as folding:
        folding.apply(delta)
        folded = propose(resident, config).bases
    first, *_, last = plain.tensors
    np.testing.assert_allclose(folded.tensors[first], plain.tensors[first], atol=1e-5)
    assert np.abs(folded.tensors[last] - plain.tensors[last]).max() > 1e-3
