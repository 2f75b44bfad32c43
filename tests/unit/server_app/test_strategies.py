"""The strategy classes: the right rule with the right settings, through `aggregate`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import MergeRefused
from fedapp.increments import difference
from fedapp.registry import METHODS, load_half
from server_app.merges import average_factors
from server_app.strategies.base import BaseStrategy
from server_app.updates import Update

METHOD_NAMES = ["fedavg", "svd", "fedsvd", "subspace-reg"]
RANK, SCALING = 4, 2.0


def adapter(seed: int, zero_b: bool = False, size: int = 20) -> Adapter:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    pairs = {
        name: LoraPair(draw(size, RANK) * (not zero_b), draw(RANK, size + 4), SCALING)
        for name in ("layer.0.query", "layer.0.value")
    }
    return Adapter(pairs, {"classifier.weight": draw(2, size)})


def strategy(method: str, initial: Adapter, **changes: Any) -> BaseStrategy:
    config = RunConfig.from_flat({"method": method, **changes})
    built: BaseStrategy = load_half(METHODS[method].server)(config)
    built.begin(initial)
    return built


def reply(sent: Adapter, seed: int, site: str, codec: Any = "fp32", keep_a: bool = True) -> Update:
    """Return what a site that changes B and the heads (and A if allowed) sends back."""
    rng = np.random.default_rng(seed)

    def train(name: str, array: Any) -> Any:
        if keep_a and name.endswith("lora_A"):
            return array
        return array + rng.standard_normal(array.shape).astype(np.float32)

    trained = sent.map(train)
    if codec == "fp32":
        return Update(site, float(10 + seed), pack(trained))
    increment = pack(difference(trained, sent), codec)
    return Update(site, float(10 + seed), increment, bases={"adapter": sent})


def product(merged: Adapter, name: str) -> Any:
    pair = merged.pairs[name]
    return pair.scaling * pair.b_mr.astype(np.float64) @ pair.a_rn.astype(np.float64)


def dense_mean(updates: Sequence[Update], name: str) -> Any:
    weights = [update.weight for update in updates]
    return np.average([product(u.adapter, name) for u in updates], axis=0, weights=weights)


def truncated(dense: Any) -> Any:
    u, s, vt = np.linalg.svd(dense)
    return (u[:, :RANK] * s[:RANK]) @ vt[:RANK]


def rounds_of(built: BaseStrategy, codec: Any = "fp32", keep_a: bool = True) -> Iterator[Any]:
    for round in (1, 2):
        sent = built.adapter
        updates = [reply(sent, 10 * round + k, f"site-{k}", codec, keep_a) for k in range(3)]
        yield round, updates, built.aggregate(round, updates)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_two_rounds_from_b_zero(method: str) -> None:
    built = strategy(method, adapter(0, zero_b=True))

    for round, _, result in rounds_of(built, keep_a=method == "fedsvd"):
        assert ("overlap" in result.diagnostics) == (round == 2)  # B was zero in round 1
        assert {"cancellation", "merge_error"} <= result.diagnostics.keys()
        assert result.adapter is built.adapter
        assert result.adapter.is_finite()
        assert result.adapter.layout() == adapter(0).layout()


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_the_order_in_which_replies_arrive_does_not_change_a_bit(method: str) -> None:
    sent = adapter(0)
    updates = [reply(sent, k, f"site-{k}") for k in range(4)]

    forwards = strategy(method, sent).aggregate(1, updates).adapter
    backwards = strategy(method, sent).aggregate(1, updates[::-1]).adapter

    assert forwards.digest() == backwards.digest()


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_a_non_finite_merge_is_refused_and_the_model_kept(method: str) -> None:
    sent = adapter(0)
    built = strategy(method, sent)
    broken = reply(sent, 2, "oslo").adapter.map(
        lambda n, x: np.full_like(x, np.inf) if n == "classifier.weight" else x
    )

    with pytest.raises(MergeRefused, match=r"classifier\.weight"):
        built.aggregate(1, [reply(sent, 1, "lyon"), Update("oslo", 1.0, pack(broken))])

    assert built.adapter.digest() == sent.digest()


def test_fedavg_is_the_mean_of_the_factors() -> None:
    sent = adapter(0)
    updates = [reply(sent, k, f"site-{k}", keep_a=False) for k in range(3)]

    merged = strategy("fedavg", sent).aggregate(1, updates).adapter

    weights = [u.weight for u in updates]
    for name, array in merged.arrays():
        own = [dict(u.adapter.arrays())[name] for u in updates]
        np.testing.assert_allclose(array, np.average(own, axis=0, weights=weights), atol=1e-5)


@pytest.mark.parametrize("factorisation", ["symmetric", "orthonormal-a", "orthonormal-b"])
@pytest.mark.parametrize("preserve", [False, True])
def test_svd_follows_its_settings(factorisation: str, preserve: bool) -> None:
    sent = adapter(0)
    updates = [reply(sent, k, f"site-{k}", keep_a=False) for k in range(3)]
    settings = {"svd.factorisation": factorisation, "svd.preserve-norm": preserve}

    merged = strategy("svd", sent, **settings).aggregate(1, updates).adapter

    for name, pair in merged.pairs.items():
        dense = dense_mean(updates, name)
        expected = truncated(dense)
        if preserve:
            expected *= np.linalg.norm(dense) / np.linalg.norm(expected)
        np.testing.assert_allclose(product(merged, name), expected, atol=1e-4)
        gram_b, gram_a = pair.b_mr.T @ pair.b_mr, pair.a_rn @ pair.a_rn.T
        if factorisation == "symmetric":
            np.testing.assert_allclose(gram_b, gram_a, atol=1e-4)
        else:
            gram = gram_b if factorisation == "orthonormal-b" else gram_a
            np.testing.assert_allclose(gram, np.eye(RANK), atol=1e-5)


@pytest.mark.parametrize("preserve", ["none", "a", "split"])
def test_subspace_reg_follows_its_setting(preserve: str) -> None:
    sent = adapter(0)
    updates = [reply(sent, k, f"site-{k}", keep_a=False) for k in range(3)]

    built = strategy("subspace-reg", sent, **{"subspace-reg.preserve-norm": preserve})
    merged = built.aggregate(1, updates).adapter

    for name, pair in merged.pairs.items():
        dense = dense_mean(updates, name)
        ratio = np.linalg.norm(dense) / np.linalg.norm(truncated(dense))
        expected = truncated(dense) * (1.0 if preserve == "none" else ratio)
        np.testing.assert_allclose(product(merged, name), expected, atol=1e-4)
        on_b = ratio if preserve == "split" else 1.0
        np.testing.assert_allclose(pair.b_mr.T @ pair.b_mr, on_b * np.eye(RANK), atol=1e-5)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_fedsvd_accepts_the_a_it_sent_through_every_codec(codec: str) -> None:
    built = strategy("fedsvd", adapter(0, zero_b=True), **{"federation.codec": codec})

    for _, updates, result in rounds_of(built, codec):
        for name, pair in result.adapter.pairs.items():
            np.testing.assert_allclose(
                product(result.adapter, name), dense_mean(updates, name), atol=1e-4
            )
            np.testing.assert_allclose(pair.a_rn @ pair.a_rn.T, np.eye(RANK), atol=1e-5)


def test_fedsvd_names_the_site_that_trained_a() -> None:
    sent = adapter(0)
    built = strategy("fedsvd", sent)
    updates = [reply(sent, 1, "lyon"), reply(sent, 2, "oslo", keep_a=False)]

    with pytest.raises(MergeRefused, match=r"^site oslo: .*'layer.0.query'.*'fedsvd'$"):
        built.aggregate(1, updates)

    assert built.adapter is sent


class Lazy(Sequence[Any]):
    """Updates that exist only while they are looked at."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        if index >= self.count:
            raise IndexError
        return _Drawn(index)


class _Drawn:
    weight = 1.0

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @property
    def adapter(self) -> Adapter:
        return adapter(self.seed, size=2000)


def test_memory_of_fedavg_does_not_depend_on_the_number_of_sites() -> None:
    peaks = []
    for count in (3, 30):
        tracemalloc.start()
        average_factors(Lazy(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] < 1.1 * peaks[0]
