"""Every attack by its name does what the function of that name does."""

import dataclasses
import math

import numpy as np
import pytest

from fedapp import attacks
from fedapp.adapter import Adapter, LoraPair
from fedapp.injector import ATTACKS, Situation, Strengths, inject

HEAD = ("fc2.bias", "fc2.weight")
HIDDEN = attacks.HiddenLayer(("fc1.weight",), ("fc2.weight",))
BY = Strengths(std=0.2, share=0.1, factor=10.0, z=1.5, epsilon=0.5, delay=1)


def model(seed):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return Adapter(
        {"q": LoraPair(normal(7, 2), normal(2, 6), 2.0)},
        {"fc1.weight": normal(5, 4), "fc2.weight": normal(3, 5), "fc2.bias": normal(3)},
    )


MODEL, START, KNOWN, SENT = model(0), model(1), [model(2), model(3)], [model(4), model(5)]
AT = Situation(MODEL, START, KNOWN, SENT, HEAD, HIDDEN, seed=0, site="a", round=3)
EXPECTED = {
    "none": MODEL,
    "additive-noise": attacks.additive_noise(MODEL, 0.2, AT.draw),
    "multiplicative-noise": attacks.multiplicative_noise(MODEL, 0.1, AT.draw),
    "sign-flip": attacks.scale(MODEL, -1),
    "update-flip": attacks.scale_update(START, MODEL, -1),
    "random": attacks.random_weights(MODEL, AT.draw),
    "head-flip": attacks.flip_head(MODEL, HEAD),
    "head-permutation": attacks.permute_head(MODEL, HEAD, AT.draw),
    "neuron-permutation": attacks.permute_neurons(MODEL, HIDDEN, AT.draw),
    "scaling": attacks.scale(MODEL, 10),
    "label-flip": MODEL,
    "alie": attacks.alie(KNOWN, 1.5),
    "ipm": attacks.ipm(KNOWN, 0.5),
    "replay": SENT[1],
    "non-finite": attacks.non_finite(MODEL, math.nan, 0.1, AT.draw),
    "free-rider": START,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_name_has_its_attack(attack):
    sent = inject(attack, AT, BY)

    assert sent.digest() == EXPECTED[attack].digest()
    assert sent.layout() == MODEL.layout()


def test_all_attacks_differ():
    sent = {attack: inject(attack, AT, BY).digest() for attack in ATTACKS if attack != "label-flip"}

    assert len(set(sent.values())) == len(sent)


def test_sites_and_rounds_draw_apart_and_a_repetition_draws_the_same():
    digests = {
        inject("random", dataclasses.replace(AT, site=site, round=round), BY).digest()
        for site in "ab"
        for round in (0, 1)
    }

    assert len(digests) == 4
    assert inject("random", AT, BY).digest() == inject("random", AT, BY).digest()


def test_an_attacker_that_knows_nobody_uses_its_own_model():
    alone = dataclasses.replace(AT, known=())

    assert inject("alie", alone, BY).digest() == MODEL.digest()
    assert inject("ipm", alone, BY).digest() == attacks.ipm([MODEL], 0.5).digest()
    first = dataclasses.replace(AT, sent=())
    assert inject("replay", first, BY) is MODEL


def test_what_cannot_be_attacked_is_named():
    with pytest.raises(ValueError, match="unknown attack 'flip'; choose one of none, additive"):
        inject("flip", AT, BY)
    with pytest.raises(ValueError, match="has none; choose another attack"):
        inject("neuron-permutation", dataclasses.replace(AT, hidden=None), BY)
    with pytest.raises(ValueError, match="expected names among the trained tensors"):
        inject("head-flip", dataclasses.replace(AT, head=()), BY)
