"""Folding strategies against dense sums of products."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_federation import COLUMNS, ROWS, FakeGrid, changed, initial_adapter

from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, MergeRefused
from fedapp.peft_format import load_peft
from fedapp.results import RunFolder
from fedapp.subspaces import orthonormality_error, random_basis
from server_app.app import build_strategy
from server_app.strategies.folding import Folding
from server_app.updates import Update

SITES = {"A": 3.0, "B": 1.0, "C": 4.0}
METHODS = ("dysco", "random-boost", "flora")


def begun(method: str = "dysco", **flat: Any) -> Folding:
    config = RunConfig.from_flat({"method": method, "lora.rank": 2, **flat})
    strategy = build_strategy(config)
    assert isinstance(strategy, Folding)
    strategy.begin(initial_adapter(config))
    return strategy


def prepare(strategy: Folding, round: int) -> None:
    """Give every site random bases, if it is asked for any."""
    layout = strategy.basis_layout()
    if layout is None:
        return
    bases = {
        site: Adapter(
            {},
            {
                name: random_basis(n, q, (round, k)).astype(np.float32)
                for name, (q, n) in layout["tensors"].items()
            },
        )
        for k, site in enumerate(SITES)
    }
    strategy.take_bases(round, bases, list(SITES))


def trained(strategy: Folding, round: int) -> dict[str, Adapter]:
    """What each site makes of what it received."""
    rng = np.random.default_rng(round)

    def work(name: str, array: np.ndarray) -> np.ndarray:
        if name.endswith(".lora_A") and not strategy.trains_a:
            return array
        return (array + rng.standard_normal(array.shape)).astype(np.float32)

    return {site: strategy.payloads(round, site)["adapter"].map(work) for site in SITES}


def updates_of(adapters: dict[str, Adapter]) -> list[Update]:
    packed = {site: pack(adapter) for site, adapter in adapters.items()}
    return [Update(site, SITES[site], packed[site], {"adapter": packed[site]}) for site in adapters]


def dense(adapter: Adapter | None, name: str) -> np.ndarray:
    if adapter is None:
        return np.zeros((ROWS, COLUMNS))
    pair = adapter.pairs[name]
    return np.asarray(pair.scaling * pair.b_mr.astype(float) @ pair.a_rn.astype(float))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", ["mean", "sum"])
def test_what_is_folded_is_the_sum_of_all_products(method: str, scale: str) -> None:
    strategy = begun(method, **{"dysco.merge-scale": scale, "dysco.folded-rank": 0})
    names = list(strategy.adapter.pairs)
    total = {name: np.zeros((ROWS, COLUMNS)) for name in names}
    for round in (1, 2, 3):
        prepare(strategy, round)
        adapters = trained(strategy, round)
        result = strategy.aggregate(round, updates_of(adapters))
        for site, adapter in adapters.items():
            share = SITES[site] / sum(SITES.values())
            for name in names:
                total[name] += (share if scale == "mean" else 1.0) * dense(adapter, name)
        for name in names:
            np.testing.assert_allclose(dense(strategy.folded, name), total[name], atol=1e-5)
            assert not strategy.adapter.pairs[name].b_mr.any(), "B begins at zero again"
        head = sum(
            SITES[site] / sum(SITES.values()) * a.tensors["classifier.weight"]
            for site, a in adapters.items()
        )
        np.testing.assert_allclose(strategy.adapter.tensors["classifier.weight"], head, rtol=1e-5)
        assert result.diagnostics["truncation_error"] < 1e-6
        norm = np.sqrt(sum(np.square(matrix).sum() for matrix in total.values()))
        assert result.diagnostics["folded_norm"] == pytest.approx(norm, rel=1e-5)
    payloads = strategy.payloads(4, "A") if method != "dysco" else strategy.evaluation_payloads("A")
    assert payloads["folded"] is strategy.folded, "one message brings a site up to date"


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_arrival_does_not_change_a_bit(method: str) -> None:
    digests = []
    for order in (1, -1):
        strategy = begun(method)
        for round in (1, 2):
            prepare(strategy, round)
            strategy.aggregate(round, updates_of(trained(strategy, round))[::order])
        assert strategy.folded is not None
        digests.append((strategy.folded.digest(), strategy.adapter.digest()))

    assert digests[0] == digests[1]


@pytest.mark.parametrize("method", METHODS)
def test_a_is_new_in_every_round_and_orthonormal_where_it_is_not_trained(method: str) -> None:
    strategy = begun(method)
    seen = []
    for round in (1, 2):
        prepare(strategy, round)
        starts = [strategy.payloads(round, site)["adapter"] for site in SITES]
        assert starts[0] is strategy.payloads(round, "A")["adapter"], "packed once"
        assert (starts[0] is starts[1]) == strategy.shares_a
        for start in starts:
            for pair in start.pairs.values():
                assert pair.a_rn.dtype == np.float32
                if method != "flora":
                    assert orthonormality_error(pair.a_rn) < 1e-6
                seen.append(pair.a_rn)
        strategy.aggregate(round, updates_of(trained(strategy, round)))
    half = len(seen) // 2
    for first, second in zip(seen[:half], seen[half:], strict=True):
        assert np.abs(first - second).max() > 0.05


def test_a_cap_on_the_rank_keeps_the_best_and_tells_what_it_took() -> None:
    strategy, whole = begun("dysco", **{"dysco.folded-rank": 3}), begun("dysco")
    for each in (strategy, whole):
        prepare(each, 1)
        result = each.aggregate(1, updates_of(trained(each, 1)))
    lost, total = 0.0, 0.0
    for name in whole.adapter.pairs:
        u, s, vt = np.linalg.svd(dense(whole.folded, name))
        assert strategy.folded is not None
        assert strategy.folded.pairs[name].rank == 3
        np.testing.assert_allclose(
            dense(strategy.folded, name), (u[:, :3] * s[:3]) @ vt[:3], atol=1e-5
        )
        lost, total = lost + np.square(s[3:]).sum(), total + np.square(s).sum()
    assert strategy.numbers()["truncation_error"] == pytest.approx(np.sqrt(lost / total), rel=1e-4)
    assert result.diagnostics["truncation_error"] < 1e-6


def test_momentum_is_that_of_the_products() -> None:
    """FedAvgM under dysco: u <- beta u + d, W <- W + eta u, with d the round's mean product."""
    flat = {
        "federation.algorithm": "fedavgm",
        "fedavgm.momentum": 0.8,
        "fedavgm.server-lr": 0.5,
        "fedavgm.rank-cap": 64,
        "dysco.folded-rank": 0,
    }
    strategy = begun("dysco", **flat)
    names = list(strategy.adapter.pairs)
    velocity = {name: np.zeros((ROWS, COLUMNS)) for name in names}
    total = {name: np.zeros((ROWS, COLUMNS)) for name in names}
    head, head_velocity = strategy.adapter.tensors["classifier.weight"].astype(float), 0.0
    for round in (1, 2, 3):
        prepare(strategy, round)
        adapters = trained(strategy, round)
        strategy.aggregate(round, updates_of(adapters))
        shares = {site: SITES[site] / sum(SITES.values()) for site in SITES}
        for name in names:
            work = sum(share * dense(adapters[site], name) for site, share in shares.items())
            velocity[name] = 0.8 * velocity[name] + work
            total[name] += 0.5 * velocity[name]
            np.testing.assert_allclose(dense(strategy.folded, name), total[name], atol=1e-4)
        mean = sum(s * adapters[k].tensors["classifier.weight"] for k, s in shares.items())
        head_velocity = 0.8 * head_velocity + (mean - head)
        head = head + 0.5 * head_velocity
        np.testing.assert_allclose(
            strategy.adapter.tensors["classifier.weight"], head, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("method", ["dysco", "random-boost"])
def test_another_a_than_was_sent_is_refused_by_name(method: str) -> None:
    strategy = begun(method)
    prepare(strategy, 1)
    adapters = trained(strategy, 1)
    before = strategy.state_dict()
    adapters["B"] = adapters["B"].map(lambda name, x: -x if name == "layer.1.query.lora_A" else x)
    with pytest.raises(MergeRefused, match=r"changed A of pair 'layer.1.query'.*'" + method) as e:
        strategy.aggregate(1, updates_of(adapters))
    assert e.value.site == "B"
    assert strategy.state_dict().keys() == before.keys()
    assert strategy.folded is None


def test_a_round_that_fails_leaves_what_was_folded() -> None:
    strategy = begun("random-boost")
    strategy.aggregate(1, updates_of(trained(strategy, 1)))
    folded, model = strategy.folded, strategy.adapter
    huge = {
        site: a.map(lambda name, x: x if name.endswith("A") else np.full_like(x, 3e38))
        for site, a in trained(strategy, 2).items()
    }
    with pytest.raises(MergeRefused), np.errstate(over="ignore", invalid="ignore"):
        strategy.aggregate(2, updates_of(huge))
    assert strategy.folded is folded
    assert strategy.adapter is model
    strategy.aggregate(2, updates_of(trained(strategy, 2)))


def test_settings_that_cannot_be_met_are_refused_before_round_1() -> None:
    with pytest.raises(ConfigError, match=r"layer 'layer.0.query' has only 5 inputs"):
        begun("dysco", **{"lora.rank": 6})
    with pytest.raises(ConfigError, match=r"dysco.rows is 1.*lora.rank = 2"):
        begun("dysco", **{"dysco.rows": 1})


@pytest.mark.parametrize("rank", [0, 3])
def test_the_ensemble_is_exported_as_one_adapter(
    finished: Callable[..., RunFolder],
    settings: Callable[..., RunConfig],
    rank: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = settings(method="random-boost", federation__local_only=False)
    folder = finished(config=config.with_changes({"dysco.export-rank": rank}))

    exported = load_peft(folder.adapter)

    described = json.loads((folder.adapter / "adapter_config.json").read_text())
    summary = json.loads(folder.summary_file.read_text())
    expected = 5 if rank == 0 else 3  # three rounds of rank 2 in layers with five inputs
    assert (described["r"], described["lora_alpha"]) == (expected, expected)
    assert {pair.rank for pair in exported.pairs.values()} == {expected}
    error = summary["export"]["relative_error"]
    assert (error < 1e-6) if rank == 0 else (0.01 < error < 1)
    assert f"rank {expected}, relative error" in capsys.readouterr().out
    assert "the sum of all rounds" in (folder.adapter / "README.md").read_text()
    assert summary["adapter_digest"] == exported.digest()


def test_a_site_that_changes_a_is_left_out_of_a_run(
    finished: Callable[..., RunFolder],
) -> None:
    grid = FakeGrid()

    def turned(adapter: Adapter) -> Adapter:
        return Adapter(
            {n: LoraPair(p.b_mr, -p.a_rn, p.scaling) for n, p in adapter.pairs.items()},
            adapter.tensors,
        )

    grid.inject("Hungary", changed(turned), round=2)
    folder = finished(grid, method="dysco", federation__min_replies=3, federation__rounds=2)
    row = [row for row in folder.read_metrics() if row["phase"] == "federation"][-1]
    assert row["missing"] == {"Hungary": "not mergeable"}
