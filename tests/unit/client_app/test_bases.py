"""What a site proposes before a round of dysco."""

import numpy as np
import pytest
import torch
from tiny_residents import by_hand, items_of
from tiny_residents import tiny_resident as make

from client_app.activations import collect_inputs
from client_app.bases import activation_seed, site_bases
from client_app.folding import Folding
from fedapp.adapter import Adapter, LoraPair
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
