"""The kernel score against autograd Jacobians of a small head, and what it can and cannot see."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.ntk import (
    LARGEST_FULL_KERNEL,
    agreement,
    alignment,
    calibrated,
    kernel,
)

ROWS, WIDTH, CLASSES = 12, 7, 4


class Net(torch.nn.Module):
    """Two hidden ReLU layers and a linear head, in fp64."""

    def __init__(self, seed, bias=True, classes=CLASSES):
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(5, 9)
        self.second = torch.nn.Linear(9, WIDTH)
        self.head = torch.nn.Linear(WIDTH, classes, bias=bias)
        self.double()

    def features(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))))

    def forward(self, x):
        return self.head(self.features(x))


def records(seed=0, rows=ROWS):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, 5)))


def seen(net, x):
    with torch.no_grad():
        features = net.features(x)
        return features.numpy(), net.head(features).numpy()


def jacobian(net, x, probabilities):
    """Derivatives of every output in the head's parameters, (n, C, parameters)."""
    names = [name for name, _ in net.named_parameters() if name.startswith("head")]
    values = tuple(dict(net.named_parameters())[name].detach() for name in names)

    def outputs(*parameters):
        z = torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x,))
        return torch.softmax(z, dim=1) if probabilities else z

    parts = torch.autograd.functional.jacobian(outputs, values)
    return torch.cat([part.flatten(2) for part in parts], dim=2).numpy()


def score_of(k_i, k_j, centring):
    i, j = centring @ k_i @ centring, centring @ k_j @ centring
    return np.sum(i * j) / (np.linalg.norm(i) * np.linalg.norm(j))


def centring(rows):
    return np.eye(rows) - np.ones((rows, rows)) / rows


def trace_kernel(jac):
    return np.einsum("acp,bcp->ab", jac, jac) / jac.shape[1]


def full_kernel(jac):
    flat = jac.reshape(-1, jac.shape[2])
    return flat @ flat.T


def score(i, j, x, kind="logits"):
    return alignment(kernel(*seen(i, x), kind=kind), kernel(*seen(j, x), kind=kind))


# ---- against derivatives ----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS, 4 * WIDTH])  # held whole, and as a root
@pytest.mark.parametrize("bias", [True, False])
def test_the_default_is_the_trace_kernel_of_the_last_layer(bias, rows):
    x = records(rows=rows)
    i, j = Net(0, bias), Net(1, bias)
    oracle = score_of(
        trace_kernel(jacobian(i, x, False)), trace_kernel(jacobian(j, x, False)), centring(rows)
    )

    assert (kernel(seen(i, x)[0]).root is None) == (rows == ROWS)
    assert agreement(seen(i, x)[0], seen(j, x)[0]) == pytest.approx(oracle, abs=1e-12)
    assert 0.1 < oracle < 0.95, "not a case in which every score would do"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("classes", [2, 4])
def test_the_softmax_kernels_are_those_of_the_probabilities(bias, classes):
    x = records(3)
    i, j = Net(0, bias, classes), Net(1, bias, classes)
    jac_i, jac_j = jacobian(i, x, True), jacobian(j, x, True)
    h, per_output = centring(ROWS), np.kron(centring(ROWS), np.eye(classes))

    for kind, oracle in [
        ("softmax_trace", score_of(trace_kernel(jac_i), trace_kernel(jac_j), h)),
        ("softmax_full", score_of(full_kernel(jac_i), full_kernel(jac_j), per_output)),
    ]:
        kernels = [kernel(*seen(net, x), kind=kind, bias=bias) for net in (i, j)]
        assert alignment(*kernels) == pytest.approx(oracle, abs=1e-12)
        assert alignment(kernels[0], kernels[0]) == pytest.approx(1)


def test_the_full_kernel_of_the_logits_centred_per_output_is_the_trace_kernel():
    x, (i, j) = records(), (Net(0), Net(1))
    full_i, full_j = (full_kernel(jacobian(net, x, False)) for net in (i, j))

    per_output = score_of(full_i, full_j, np.kron(centring(ROWS), np.eye(CLASSES)))
    over_all_rows = score_of(full_i, full_j, centring(ROWS * CLASSES))

    assert score(i, j, x) == pytest.approx(per_output, abs=1e-12)
    assert over_all_rows > per_output + 0.05, "which is why nothing is centred over all rows"


def test_one_logit_is_that_of_a_sigmoid():
    rng = np.random.default_rng(0)
    features, z = rng.standard_normal((9, 4)), rng.standard_normal((9, 1))
    other = rng.standard_normal((9, 4))
    p = 1 / (1 + np.exp(-z[:, 0]))
    slope = np.outer(p * (1 - p), p * (1 - p))
    oracle = score_of(
        (features @ features.T + 1) * slope, (other @ other.T + 1) * slope, centring(9)
    )

    for kind in ("softmax_trace", "softmax_full"):
        own, peer = kernel(features, z, kind=kind), kernel(other, z, kind=kind)
        assert alignment(own, peer) == pytest.approx(oracle, abs=1e-12)


# ---- METHODS 1.4: what the scores are blind to ------------------------------------------------


def changed(net, change):
    other = Net(0, classes=net.head.out_features)
    other.load_state_dict(net.state_dict())
    with torch.no_grad():
        change(other)
    return other


def flip_head(net):
    net.head.weight.neg_()
    net.head.bias.neg_()


def redraw_head(net):
    net.head.weight.normal_()
    net.head.bias.normal_()


def permute_classes(net):
    order = torch.roll(torch.arange(net.head.out_features), 1)
    net.head.weight.copy_(net.head.weight[order].clone())
    net.head.bias.copy_(net.head.bias[order].clone())


def scale_head(net):
    net.head.weight.mul_(100)
    net.head.bias.mul_(100)


def permute_neurons(net):
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(3))
    net.second.weight.copy_(net.second.weight[order].clone())
    net.second.bias.copy_(net.second.bias[order].clone())
    net.head.weight.copy_(net.head.weight[:, order].clone())


@pytest.mark.parametrize(
    ("change", "classes", "blind", "seeing"),
    [
        (flip_head, 4, {"logits"}, {"softmax_trace", "softmax_full"}),
        (flip_head, 2, {"logits", "softmax_trace", "softmax_full"}, set()),
        (redraw_head, 4, {"logits"}, {"softmax_trace", "softmax_full"}),
        (permute_classes, 4, {"logits", "softmax_trace"}, {"softmax_full"}),
        (scale_head, 4, {"logits"}, {"softmax_trace", "softmax_full"}),
        (permute_neurons, 4, {"logits", "softmax_trace", "softmax_full"}, set()),
    ],
)
def test_exact_blind_spots(change, classes, blind, seeing):
    x, net = records(rows=40), Net(0, classes=classes)
    with torch.no_grad():
        net.head.weight.mul_(10)  # probabilities away from 1 / C
    peer = changed(net, change)

    for kind in blind:
        assert score(net, peer, x, kind) == pytest.approx(1, abs=1e-12), kind
    for kind in seeing:
        assert score(net, peer, x, kind) < 0.99, kind


def test_scaling_the_whole_model_is_not_seen_without_biases_but_by_the_softmax():
    x = records(rows=40)

    def without_biases(seed, factor):
        net = Net(seed)
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.mul_(0 if name.endswith("bias") else factor)
        return net

    net, scaled = without_biases(0, 1), without_biases(0, 8)
    features, _ = seen(net, x)

    assert score(net, scaled, x) == pytest.approx(1, abs=1e-12)
    assert agreement(features, -features) == pytest.approx(1, abs=1e-12)
    for kind in ("softmax_trace", "softmax_full"):
        assert score(net, scaled, x, kind) < 0.97, kind


@pytest.mark.parametrize(
    ("kind", "least"), [("logits", 0.2), ("softmax_trace", 0.2), ("softmax_full", 0.05)]
)
def test_a_flip_of_the_whole_model_is_seen_in_part(kind, least):
    def flip(net):
        for parameter in net.parameters():
            parameter.neg_()

    x, net = records(rows=64), Net(0)

    # Far from 0 on a shallow net: a threshold of 0.6 may let it pass.
    assert least < score(net, changed(net, flip), x, kind) < 0.98


# ---- properties -------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 20), st.integers(1, 12), st.integers(1, 12))
def test_the_score_is_symmetric_bounded_and_blind_to_rotation_and_scale(seed, n, d_i, d_j):
    rng = np.random.default_rng(seed)
    i, j = rng.standard_normal((n, d_i)), rng.standard_normal((n, d_j))
    rotation, _ = np.linalg.qr(rng.standard_normal((d_i, d_i)))

    value = agreement(i, j)

    assert 0 <= value <= 1
    assert agreement(j, i) == pytest.approx(value, abs=1e-14)
    assert agreement(i, i) == pytest.approx(1)
    assert agreement(1e-3 * i @ rotation + 5, j) == pytest.approx(value, abs=1e-9)


def test_fp32_features_give_the_score_of_fp64_even_with_a_large_common_part():
    rng = np.random.default_rng(0)
    i = (rng.standard_normal((64, 300)) + 300).astype(np.float32)
    j = (i + rng.standard_normal((64, 300))).astype(np.float32)
    oracle_i, oracle_j = (k @ k.T for k in (a.astype(float) - a.mean(0, float) for a in (i, j)))

    assert agreement(i, j) == pytest.approx(score_of(oracle_i, oracle_j, np.eye(64)), abs=1e-12)


def test_wide_features_are_taken_in_blocks():
    rng = np.random.default_rng(0)
    i, j = (rng.standard_normal((3, 400_000)).astype(np.float32) for _ in range(2))
    i[:, :5] += 30 * np.arange(3)[:, None]
    j[:, -5:] += 40 * np.arange(3)[:, None]
    centred = [a.astype(float) - a.mean(axis=0, dtype=float) for a in (i, j)]

    oracle = score_of(*(a @ a.T for a in centred), np.eye(3))

    assert agreement(i, j) == pytest.approx(oracle, abs=1e-10)


def test_every_block_counts():
    """Of three rows a block is 349,525 features; what varies may be in one of them alone."""
    rng = np.random.default_rng(0)
    first = np.ones((3, 400_000), np.float32)
    first[:, :5] += rng.standard_normal((3, 5)).astype(np.float32)
    sound = rng.standard_normal((3, 4)).astype(np.float32)
    oracle = score_of(*(k.astype(float) @ k.T.astype(float) for k in (first[:, :5], sound)),
                      centring(3))  # fmt: skip
    rounding = np.full((3, 400_000), 1000, np.float32)
    rounding[0] = np.nextafter(rounding[1], np.float32(9))
    rounding[:, 349_525:] = 1e-3

    assert agreement(first, sound) == pytest.approx(oracle, abs=1e-9)
    assert not kernel(rounding).is_informative


def test_few_features_of_very_many_rows_are_of_several_blocks_and_no_root():
    rng = np.random.default_rng(0)
    i = rng.standard_normal((2100, 600)).astype(np.float32)
    j = (i + rng.standard_normal((2100, 600))).astype(np.float32)
    k_i, k_j = (a.astype(float) - a.mean(axis=0, dtype=float) for a in (i, j))
    norms = [np.linalg.norm(k.T @ k) for k in (k_i, k_j)]

    assert kernel(i).root is None
    assert agreement(i, j) == pytest.approx(np.sum((k_i.T @ k_j) ** 2) / np.prod(norms), abs=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_huge_and_tiny_features_neither_overflow_nor_vanish(scale):
    rng = np.random.default_rng(0)
    i, j = (rng.standard_normal((8, 5)).astype(np.float32) for _ in range(2))

    assert agreement(np.float32(scale) * i, j) == pytest.approx(agreement(i, j), abs=1e-6)
    assert agreement(np.float64(scale) ** 8 * i, j) == pytest.approx(agreement(i, j), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 40), st.integers(1, 12), st.integers(1, 12))
def test_few_and_many_features_are_held_differently_and_compared_alike(seed, n, d_i, d_j):
    rng = np.random.default_rng(seed)
    i, j = (rng.standard_normal((n, d)).astype(np.float32) for d in (d_i, d_j))
    k_i, k_j = kernel(i), kernel(j)
    h = centring(n)
    oracle = score_of(*(k.astype(float) @ k.T.astype(float) for k in (i, j)), h)

    assert (k_i.root is None) == (3 * d_i > n)
    assert alignment(k_i, k_j) == pytest.approx(oracle, abs=1e-12)
    assert np.linalg.norm(k_i.values) == pytest.approx(1)
    assert k_i.values == pytest.approx(h @ k_i.values @ h, abs=1e-12)


# ---- nothing to judge by ----------------------------------------------------------------------


def broken():
    rng = np.random.default_rng(0)
    sound = rng.standard_normal((6, 4)).astype(np.float32)
    constant = np.tile(sound[:1], (6, 1))
    rounding = np.nextafter(constant, np.float32(9), dtype=np.float32)
    rounding[0] = constant[0]
    units = constant * (1 + 3 * 2.0**-23 * rng.choice([-1, 1], (6, 4)))
    holed = sound.copy()
    holed[2, 1] = np.nan
    infinite = sound.copy()
    infinite[2, 1] = np.inf
    return {
        "constant": constant,
        "constant up to rounding": rounding,
        "constant up to a few units": units.astype(np.float32),
        "constant, many rows of fp64": np.tile(rng.standard_normal((1, 4)), (5000, 1)),
        "zero": np.zeros((6, 4), np.float32),
        "no feature": np.zeros((6, 0), np.float32),
        "NaN": holed,
        "Inf": infinite,
    }


@pytest.mark.parametrize("name", broken())
def test_features_that_say_nothing_agree_with_nobody(name):
    features = broken()[name]
    sound = np.random.default_rng(1).standard_normal((len(features), 4)).astype(np.float32)

    assert not kernel(features).is_informative
    assert agreement(features, sound) == agreement(sound, features) == 0
    assert agreement(features, features) == 0


@pytest.mark.parametrize("kind", ["softmax_trace", "softmax_full"])
def test_saturated_or_broken_outputs_say_nothing(kind):
    features = np.random.default_rng(1).standard_normal((6, 4))
    saturated = np.zeros((6, 3))
    saturated[:, 1] = 1e4
    broken_logits = saturated.copy()
    broken_logits[0, 0] = np.nan

    assert not kernel(features, saturated, kind=kind).is_informative
    assert not kernel(features, broken_logits, kind=kind).is_informative
    assert not kernel(np.ones((6, 4)), np.ones((6, 3)), kind=kind).is_informative
    assert kernel(features, np.ones((6, 3)), kind=kind).is_informative


@pytest.mark.parametrize("kind", ["softmax_trace", "softmax_full"])
@pytest.mark.parametrize(
    "name", ["constant", "constant up to rounding", "constant up to a few units"]
)
def test_what_rounding_leaves_of_equal_rows_is_no_softmax_kernel(kind, name):
    logits = np.tile(np.random.default_rng(2).standard_normal((1, 3)), (6, 1))

    assert not kernel(broken()[name], logits, kind=kind).is_informative


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_too_few_rows_say_nothing(rows):
    features = np.random.default_rng(1).standard_normal((rows, 4))

    assert agreement(features, features) == 0
    assert not kernel(features, np.ones((rows, 3)), kind="softmax_full").is_informative


def test_mistakes_are_named():
    features = np.ones((6, 4))
    with pytest.raises(ValueError, match="same rows"):
        agreement(features, np.ones((5, 4)))
    with pytest.raises(ValueError, match=r"same rows and kind .* 12 x 12 of 6 rows and 12 x 12"):
        alignment(kernel(features, np.ones((6, 2)), kind="softmax_full"), kernel(np.ones((12, 4))))
    with pytest.raises(ValueError, match="12 x 12 of 6 rows and 6 x 6 of 6"):
        alignment(kernel(features, np.ones((6, 2)), kind="softmax_full"), kernel(np.ones((6, 4))))
    with pytest.raises(ValueError, match="shape \\(6,\\)"):
        kernel(np.ones(6))
    with pytest.raises(ValueError, match="needs logits \\(6, C\\), got None"):
        kernel(features, kind="softmax_trace")
    with pytest.raises(ValueError, match="got \\(5, 3\\)"):
        kernel(features, np.ones((5, 3)), kind="softmax_trace")
    with pytest.raises(ValueError, match="kind must be"):
        kernel(features, features, kind="relu")
    with pytest.raises(ValueError, match="use fewer rows or softmax_trace"):
        kernel(features, np.ones((6, LARGEST_FULL_KERNEL)), kind="softmax_full")


# ---- calibration ------------------------------------------------------------------------------


def test_calibration_puts_a_useless_model_at_zero():
    assert calibrated(0.7, 0.7) == 0
    assert calibrated(1, 0.7) == 1
    assert calibrated(0.8, 0.6) == pytest.approx(0.5)
    assert calibrated(0.2, 0.6) == pytest.approx(-1)
    for rounding in (0, 1e-16, 3e-16, 1e-12):
        assert calibrated(1, 1 - rounding) == 0, "nothing can be told apart"
    assert calibrated(1, 1 - 1e-6) == pytest.approx(1)
