"""Each attack does what its formula says, reproducibly, and leaves the honest model alone."""

import math

import numpy as np
import pytest
import torch

from fedapp import attacks
from fedapp.adapter import Adapter, LoraPair
from fedapp.attacks import HiddenLayer
from fedapp.faults import choose
from fedapp.gates import relative_distance
from fedapp.ntk import agreement


def model(seed=0, m=40, n=30, rank=3, scaling=2.0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return Adapter(
        {"q": LoraPair(normal(m, rank), normal(rank, n), scaling)},
        {"head.weight": 3 * normal(50, 20), "head.bias": normal(50)},
    )


def product(adapter):
    pair = adapter.pairs["q"]
    return pair.scaling * pair.b_mr.astype(float) @ pair.a_rn.astype(float)


def best_of_rank(matrix, rank=3):
    u, s, vt = np.linalg.svd(matrix)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


HEAD = ("head.weight", "head.bias")
SEEDED = {
    "additive": lambda m, seed: attacks.additive_noise(m, 0.3, seed),
    "multiplicative": lambda m, seed: attacks.multiplicative_noise(m, 1.205, seed),
    "random": attacks.random_weights,
    "permuted head": lambda m, seed: attacks.permute_head(m, HEAD, seed),
    "non-finite": lambda m, seed: attacks.non_finite(m, math.nan, 0.1, seed),
    "free rider": lambda m, seed: attacks.free_rider(m, 0.1, seed),
}
PLAIN = {
    "scale": lambda m: attacks.scale(m, 10),
    "flip": attacks.flip_sign,
    "flipped head": lambda m: attacks.flip_head(m, HEAD),
    "update": lambda m: attacks.scale_update(model(1), m, -1),
    "ipm": lambda m: attacks.ipm([m, model(1)], 0.5),
    "alie": lambda m: attacks.alie([m, model(1)], 1.5),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_fixes_what_is_drawn(name):
    first, again, other = (SEEDED[name](model(), seed) for seed in (5, 5, 6))

    assert first.digest() == again.digest()
    assert first.digest() != other.digest()


@pytest.mark.parametrize(
    "attack", [*PLAIN.values(), *(lambda m, a=a: a(m, 0) for a in SEEDED.values())]
)
def test_the_honest_model_stays_and_the_layout_fits(attack):
    honest = model()

    sent = attack(honest)

    assert honest.digest() == model().digest()
    assert sent.layout() == honest.layout()
    assert sent.digest() != honest.digest()
    assert {array.dtype for _, array in sent.arrays()} == {np.dtype(np.float32)}


# ---- noise ------------------------------------------------------------------------------------


def noise_of(attack):
    honest, sent = dict(model().arrays()), dict(attack(model()).arrays())
    return {name: (honest[name].astype(float), sent[name].astype(float)) for name in honest}


def test_additive_noise_is_normal_of_the_given_size_everywhere():
    for name, (x, y) in noise_of(lambda m: attacks.additive_noise(m, 0.3, 1)).items():
        assert np.std(y - x) == pytest.approx(0.3, rel=0.25), name
    x, y = noise_of(lambda m: attacks.additive_noise(m, 0.3, 1))["head.weight"]
    assert np.std(y - x) == pytest.approx(0.3, rel=0.07)
    assert abs(np.mean(y - x)) < 0.03
    assert abs(np.corrcoef(x.ravel(), (y - x).ravel())[0, 1]) < 0.1


def test_multiplicative_noise_is_relative_to_every_number():
    x, y = noise_of(lambda m: attacks.multiplicative_noise(m, 0.015, 1))["head.weight"]

    assert np.std(y / x - 1) == pytest.approx(0.015, rel=0.07)
    zero = Adapter({}, {"head.bias": np.zeros(5, np.float32)})
    np.testing.assert_array_equal(
        attacks.multiplicative_noise(zero, 1.2, 0).tensors["head.bias"], 0
    )


def test_arrays_of_one_shape_get_noise_of_their_own():
    twins = Adapter({}, {name: np.zeros(50, np.float32) for name in ("a", "b")})
    noisy = attacks.additive_noise(twins, 1.0, 0).tensors

    assert abs(np.corrcoef(noisy["a"], noisy["b"])[0, 1]) < 0.5


def test_random_weights_have_the_size_of_sound_ones_and_nothing_else():
    x, y = noise_of(lambda m: attacks.random_weights(m, 1))["head.weight"]

    assert np.sqrt(np.mean(y**2)) == pytest.approx(np.sqrt(np.mean(x**2)), rel=0.07)
    assert abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 0.1
    zero = Adapter({}, {"b": np.zeros(5, np.float32), "none": np.zeros(0, np.float32)})
    for _, array in attacks.random_weights(zero, 0).arrays():
        np.testing.assert_array_equal(array, 0)


# ---- signs and sizes --------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [-1.0, 10.0])
def test_scaling_is_of_the_product_and_the_tensors(factor):
    honest = model()
    sent = attacks.scale(honest, factor)

    np.testing.assert_allclose(product(sent), factor * product(honest), rtol=1e-6, atol=1e-4)
    np.testing.assert_allclose(sent.tensors["head.bias"], factor * honest.tensors["head.bias"])
    if factor == -1:
        assert attacks.flip_sign(honest).digest() == sent.digest()
        assert relative_distance(honest, sent) == pytest.approx(2)


def test_scaling_beyond_fp32_is_sent_as_it_is():
    assert not attacks.scale(model(), 1e39).is_finite()


@pytest.mark.parametrize("factor", [-1.0, 4.0, 0.0])
def test_an_update_is_scaled_about_where_the_round_began(factor):
    start, trained = model(0), model(1)

    sent = attacks.scale_update(start, trained, factor)

    np.testing.assert_allclose(
        product(sent),
        best_of_rank(product(start) + factor * (product(trained) - product(start))),
        atol=1e-4,
    )
    for name in HEAD:
        x, y = start.tensors[name], trained.tensors[name]
        np.testing.assert_allclose(sent.tensors[name], x + factor * (y - x), atol=1e-4)


# ---- heads and neurons ------------------------------------------------------------------------


def test_head_attacks_touch_the_head_alone():
    honest = model()
    flipped, permuted = attacks.flip_head(honest, HEAD), attacks.permute_head(honest, HEAD, 3)

    for sent in (flipped, permuted):
        np.testing.assert_array_equal(product(sent), product(honest))
    order = attacks.derangement(50, 3)
    for name in HEAD:
        np.testing.assert_array_equal(flipped.tensors[name], -honest.tensors[name])
        np.testing.assert_array_equal(permuted.tensors[name], honest.tensors[name][order])


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_a_derangement_leaves_nothing_in_place(count):
    for seed in range(20):
        order = attacks.derangement(count, seed)
        assert sorted(order.tolist()) == list(range(count))
        assert (order != np.arange(count)).all()
    with pytest.raises(ValueError, match="cannot be put"):
        attacks.derangement(1, 0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 4, 3), torch.nn.Conv2d(4, 6, 3)
        self.norm = torch.nn.GroupNorm(6, 6)
        self.fc1, self.fc2 = torch.nn.Linear(6 * 4, 8), torch.nn.Linear(8, 3)
        torch.nn.init.normal_(self.norm.weight)
        torch.nn.init.normal_(self.norm.bias)

    def features(self, x):
        x = torch.relu(self.norm(self.conv2(torch.relu(self.conv1(x)))))
        return torch.relu(self.fc1(x.flatten(1)))

    def forward(self, x):
        return self.fc2(self.features(x))


@pytest.mark.parametrize(
    "layer",
    [
        HiddenLayer(("conv1.weight", "conv1.bias"), ("conv2.weight",)),
        HiddenLayer(
            ("conv2.weight", "conv2.bias", "norm.weight", "norm.bias"), ("fc1.weight",)
        ),  # through a flattening
        HiddenLayer(("fc1.weight", "fc1.bias"), ("fc2.weight",)),
    ],
)
def test_permuted_neurons_compute_the_same_function_from_far_away(layer):
    net, x = Net(), torch.rand(9, 1, 6, 6)
    honest = Adapter({}, {name: p.detach().numpy().copy() for name, p in net.named_parameters()})
    with torch.no_grad():
        features, outputs = net.features(x).numpy(), net(x).numpy()

    sent = attacks.permute_neurons(honest, layer, 0)
    net.load_state_dict({name: torch.from_numpy(t) for name, t in sent.tensors.items()})

    with torch.no_grad():
        np.testing.assert_allclose(net(x).numpy(), outputs, atol=1e-5)
        assert agreement(features, net.features(x).numpy()) == pytest.approx(1, abs=1e-6)
    assert relative_distance(honest, sent) > 0.2
    changed = {
        name for name in honest.tensors if (sent.tensors[name] != honest.tensors[name]).any()
    }
    assert changed == {*layer.produced_by, *layer.read_by}


def test_names_and_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"expected names among .* got \['classifier'\]"):
        attacks.flip_head(model(), ["classifier"])
    with pytest.raises(ValueError, match="expected names"):
        attacks.permute_head(model(), [], 0)
    odd = Adapter({}, {"a": np.ones((4, 3), np.float32), "b": np.ones((2, 5), np.float32)})
    with pytest.raises(ValueError, match="one class a row"):
        attacks.permute_head(odd, ["a", "b"], 0)
    with pytest.raises(
        ValueError, match=r"b: expected a multiple of 4 columns, got shape \(2, 5\)"
    ):
        attacks.permute_neurons(odd, HiddenLayer(("a",), ("b",)), 0)
    with pytest.raises(ValueError, match="b: expected 4 rows, got 2"):
        attacks.permute_neurons(odd, HiddenLayer(("a", "b"), ("b",)), 0)


# ---- broken, lazy and old ---------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_share_of_every_array_is_not_finite(value):
    sent = attacks.non_finite(model(), value, 0.1, 0)

    for name, array in sent.arrays():
        bad = ~np.isfinite(array)
        assert bad.sum() == max(1, round(0.1 * array.size)), name
        np.testing.assert_array_equal(array[~bad], dict(model().arrays())[name][~bad])
    assert not attacks.non_finite(model(), value, 0.0, 0).is_finite(), "one number at least"


def test_a_free_rider_sends_what_it_got():
    start = model()

    assert attacks.free_rider(start, 0.0, 0) is start
    lazy = attacks.free_rider(start, 0.01, 0)
    assert 0 < relative_distance(start, lazy) < 0.1


def test_a_replay_is_as_old_as_asked():
    sent = [model(k) for k in range(4)]

    assert [attacks.replay(sent, delay) for delay in (0, 1, 3, 9)] == [
        sent[3],
        sent[2],
        sent[0],
        sent[0],
    ]
    with pytest.raises(ValueError, match="expected models"):
        attacks.replay([], 1)


# ---- crafted from others ----------------------------------------------------------------------


def test_alie_is_the_mean_less_z_deviations_number_by_number():
    models = [model(k) for k in range(5)]
    sent = dict(attacks.alie(models, 1.5).arrays())

    for name in sent:
        stack = np.array([dict(m.arrays())[name] for m in models], dtype=float)
        for at in [(0,) * (stack.ndim - 1), (2,) * (stack.ndim - 1)]:
            numbers = stack[(slice(None), *at)]
            mean = sum(numbers) / 5
            deviation = math.sqrt(sum((x - mean) ** 2 for x in numbers) / 5)
            assert sent[name][at] == pytest.approx(mean - 1.5 * deviation, abs=1e-5)


def test_alie_z_by_hand():
    # 50 sites, 24 faulty: s = 26 - 24 = 2, (26 - 2) / 26 = 0.923, z = 1.426
    assert attacks.alie_z(50, 24) == pytest.approx(1.4261, abs=1e-3)
    assert attacks.alie_z(8, 2) == pytest.approx(0, abs=1e-9)  # s = 3 of 6
    for faulty in (5, 6, 7):
        with pytest.raises(ValueError, match="choose one"):
            attacks.alie_z(8, faulty)


def test_ipm_points_against_the_mean():
    models = [model(k) for k in range(3)]
    mean = np.mean([product(m) for m in models], axis=0)
    bias = np.mean([m.tensors["head.bias"] for m in models], axis=0)

    sent = attacks.ipm(models, 0.5)
    np.testing.assert_allclose(product(sent), best_of_rank(-0.5 * mean), atol=1e-4)
    np.testing.assert_allclose(sent.tensors["head.bias"], -0.5 * bias, atol=1e-5)

    start = model(9)
    of_update = attacks.ipm(models, 0.1, start)
    expected = product(start) - 0.1 * (mean - product(start))
    np.testing.assert_allclose(product(of_update), best_of_rank(expected), atol=1e-4)
    x = start.tensors["head.bias"]
    np.testing.assert_allclose(of_update.tensors["head.bias"], x - 0.1 * (bias - x), atol=1e-5)


# ---- choices and labels -----------------------------------------------------------------------


def test_attacks_switch_from_round_to_round_and_site_to_site():
    kinds = ["flip", "noise", "random"]
    by_site = {site: [choose(kinds, 0, site, round) for round in range(300)] for site in "ab"}

    assert by_site["a"] != by_site["b"]
    assert by_site["a"] == [choose(kinds, 0, "a", round) for round in range(300)]
    for chosen in by_site.values():
        assert all(70 <= chosen.count(kind) <= 130 for kind in kinds)
    with pytest.raises(ValueError, match="no attack"):
        choose([], 0, "a", 0)


def test_flipped_labels_by_hand():
    labels = np.array([0, 1, 2, 9])

    np.testing.assert_array_equal(attacks.flip_labels(labels, 10), [9, 8, 7, 0])
    np.testing.assert_array_equal(attacks.flip_labels(attacks.flip_labels(labels, 10), 10), labels)
    assert attacks.flip_labels(labels.astype(np.uint8), 10).dtype == np.uint8
    assert len(attacks.flip_labels(labels[:0], 10)) == 0
    with pytest.raises(ValueError, match=r"within 0\.\.4, got 0\.\.9"):
        attacks.flip_labels(labels, 5)
