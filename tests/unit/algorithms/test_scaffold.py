"""SCAFFOLD against algorithm 1 of the paper, and where it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quadratic import QuadraticFederation, heads, quadratic_config, regressions, snapshot

from client_app.algorithms import scaffold as client
from fedapp.adapter import Adapter
from fedapp.errors import ConfigError, UpdateRefused
from server_app.algorithms import scaffold as server
from server_app.app import build_strategy
from server_app.training_round import validate

LOSSES = [
    (np.diag([1.0, 0.2]), np.array([3.0, -1.0])),
    (np.diag([0.3, 2.0]), np.array([-2.0, 4.0])),
    (np.diag([1.5, 1.0]), np.array([0.0, 3.0])),
]
STEPS, ETA = 8, 0.1


def federation_of(examples: list[float], **flat: Any) -> QuadraticFederation:
    config = quadratic_config(federation__algorithm="scaffold", train__learning_rate=ETA, **flat)
    return heads(config, LOSSES, examples, [STEPS] * 3)


def optimum(shares: list[float]) -> np.ndarray:
    h = sum(p * h for p, (h, _) in zip(shares, LOSSES, strict=True))
    total = sum(p * h @ b for p, (h, b) in zip(shares, LOSSES, strict=True))
    x: np.ndarray = np.linalg.solve(h, total)
    return x


def lifted(federation: QuadraticFederation) -> np.ndarray:
    state = snapshot(federation.strategy)
    c: np.ndarray = state["algorithm.lifted"].tensors["head.weight"]
    return c


@pytest.mark.parametrize("variate", ["gradients", "displacement"])
@pytest.mark.parametrize("sampled", [None, [(0, 1), (1, 2), (0, 2), (0,), (1, 2), (0, 1)]])
def test_the_recursion_is_option_two_of_the_paper(variate: str, sampled: Any) -> None:
    federation = federation_of([20, 20, 20], scaffold__variate=variate)

    x, c, own = np.zeros(2), np.zeros(2), np.zeros((3, 2))
    for number in range(1, 7):
        chosen = sampled[number - 1] if sampled else (0, 1, 2)
        federation.round(number, [f"site-{k}" for k in chosen])
        ends, changes = [], []
        for k in chosen:
            h, b = LOSSES[k]
            y = x.copy()
            for _ in range(STEPS):
                y = y - ETA * (h @ (y - b) - own[k] + c)
            new = own[k] - c + (x - y) / (STEPS * ETA)
            changes.append(new - own[k])
            ends.append(y)
            own[k] = new
        x = x + np.mean([y - x for y in ends], axis=0)
        c = c + len(chosen) / 3 * np.mean(changes, axis=0)
        np.testing.assert_allclose(federation.head, x, atol=2e-5)
        np.testing.assert_allclose(lifted(federation), c, atol=2e-5)
        np.testing.assert_allclose(c, own.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize(
    ("examples", "flat"),
    [
        ([20, 20, 20], {}),
        ([10, 30, 60], {"scaffold__variate": "displacement", "train__momentum": 0.5}),
    ],
    ids=["plain", "weighted-with-momentum"],
)
def test_it_ends_at_the_optimum_of_the_weighted_loss(examples: list[float], flat: Any) -> None:
    shares = [n / sum(examples) for n in examples]
    best = optimum(shares)
    distances = {}
    for algorithm in ("fedavg", "scaffold"):
        config = quadratic_config(
            **{"train__learning_rate": ETA, **flat, "federation__algorithm": algorithm}
        )
        federation = heads(config, LOSSES, examples, [STEPS] * 3)
        for number in range(1, 31):
            federation.round(number)
        distances[algorithm] = float(np.linalg.norm(federation.head - best))

    assert distances["fedavg"] > 0.05
    assert distances["scaffold"] < 1e-3


def test_with_momentum_the_displacement_gives_a_mean_of_the_gradients() -> None:
    """A gradient that is the same at every step is its own mean, whatever the weights."""
    rho = 0.7
    config = quadratic_config(
        federation__algorithm="scaffold", scaffold__variate="displacement", train__momentum=rho
    )
    flat = [(np.zeros((2, 2)), np.zeros(2))]
    federation = heads(config, flat, [10], [5])
    federation.sites[0].loss = lambda live: live.tensors["head.weight"].sum() * 3.0

    federation.round(1)

    np.testing.assert_allclose(lifted(federation), [3.0, 3.0], rtol=1e-5)


def test_with_adamw_the_variate_is_the_mean_gradient() -> None:
    federation = federation_of([20, 20, 20], train__optimizer="adamw")
    for number in (1, 2, 3):
        federation.round(number)
    assert np.isfinite(federation.head).all()

    flat = heads(federation.config, [(np.zeros((2, 2)), np.zeros(2))], [10], [5])
    flat.sites[0].loss = lambda live: live.tensors["head.weight"].sum() * 3.0
    flat.round(1)
    np.testing.assert_allclose(lifted(flat), [3.0, 3.0], rtol=1e-5)


def test_the_displacement_of_adamw_means_nothing_and_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"displacement.*train\.optimizer sgd, got adamw"):
        quadratic_config(
            federation__algorithm="scaffold",
            scaffold__variate="displacement",
            train__optimizer="adamw",
        )


@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_nor_is_that_of_pflalign_a_sum_of_gradients(base: str) -> None:
    pflalign = {"method": "pflalign", "pflalign__base": base, "federation__algorithm": "scaffold"}
    with pytest.raises(ConfigError, match=r"displacement.*under method pflalign.*= gradients"):
        quadratic_config(**pflalign, scaffold__variate="displacement", train__optimizer="sgd")
    quadratic_config(**pflalign, train__optimizer="sgd")


def own_variates(federation: QuadraticFederation) -> np.ndarray:
    """Weighted mean of what the sites keep."""
    total = sum(site.examples for site in federation.sites)
    values = []
    for site in federation.sites:
        tensors, _ = site.kept[-1]
        key = next(k for k in tensors if k.startswith("algorithm.variate/"))
        values.append(site.examples / total * tensors[key])
    mean: np.ndarray = np.sum(values, axis=0)
    return mean


@pytest.mark.parametrize("times", [1, 2])
def test_a_site_whose_reply_was_lost_goes_back(times: int) -> None:
    federation, calm = federation_of([10, 30, 60]), federation_of([10, 30, 60])
    for each in (federation, calm):
        each.round(1)
        each.round(2)
    for _ in range(times):  # site-1 trains, keeps its state, and its reply is lost
        federation.sites[1].train(federation.strategy, 3)
    federation.round(3, ["site-0", "site-2"])
    calm.round(3, ["site-0", "site-2"])

    updates = federation.round(4)
    calm.round(4)

    assert [u.numbers["variate_round"] for u in updates] == [3.0, 2.0, 3.0]
    assert federation.strategy.adapter.digest() == calm.strategy.adapter.digest()
    np.testing.assert_allclose(lifted(federation), own_variates(federation), atol=1e-6)


def test_a_site_that_lost_its_variate_says_so_and_all_begin_anew(
    capsys: pytest.CaptureFixture[str],
) -> None:
    federation = federation_of([10, 30, 60])
    federation.round(1)
    federation.sites[1].kept.clear()

    updates = federation.round(2)

    assert [u.numbers["variate_round"] for u in updates] == [1.0, 0.0, 1.0]
    assert "warning: round 2: site-1 did not continue" in capsys.readouterr().out
    assert "algorithm.lifted" not in snapshot(federation.strategy)
    assert [u.numbers["variate_round"] for u in federation.round(3)] == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(lifted(federation), own_variates(federation), atol=1e-6)
    for number in range(4, 25):
        federation.round(number)
    assert np.linalg.norm(federation.head - optimum([0.1, 0.3, 0.6])) < 5e-3


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_a_short_format_rounds_both_sides_alike(codec: str) -> None:
    from fedapp.codec import pack

    federation = federation_of([10, 30, 60], federation__codec=codec)
    for number in (1, 2, 3):
        strategy, updates = federation.strategy, []
        for site in federation.sites:
            reply = site.train(strategy, number)
            # What encode_payloads does with a payload that was not received under its name.
            short = {name: pack(p.unpack(), codec) for name, p in reply.payloads.items()}  # type: ignore[arg-type]
            sent = strategy.sends(number, site.name)["adapter"]
            increment = (
                reply.payloads["adapter"].unpack().map(lambda n, a, s=sent: a - dict(s.arrays())[n])
            )
            short["adapter"] = pack(increment, codec)  # type: ignore[arg-type]
            updates.append(
                validate(strategy, number, type(reply)(**{**vars(reply), "payloads": short}))
            )
        strategy.aggregate(number, updates)

    np.testing.assert_allclose(lifted(federation), own_variates(federation), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["svd", "subspace-reg", "fedsvd"])
def test_where_the_basis_moves_c_stays_the_mean_of_the_lifts(method: str) -> None:
    """`c = sum_i p_i c_i` as matrices, absent sites included, though every basis is another."""
    config = quadratic_config(
        method=method,
        federation__algorithm="scaffold",
        train__learning_rate=0.02,
        scaffold__rank_cap=30,
    )
    federation = regressions(config)
    for number, chosen in enumerate([(0, 1, 2), (0, 1), (1, 2), (0, 1, 2)], start=1):
        federation.round(number, [f"site-{k}" for k in chosen])

    shared = snapshot(federation.strategy)["algorithm.lifted"]
    for name in shared.pairs:
        mean = 0.0
        for site in federation.sites:
            tensors, _ = site.kept[-1]
            key = f"algorithm.variate/{name}"
            mean = mean + site.examples / 45 * tensors[f"{key}.lora_B"] @ tensors[f"{key}.lora_A"]
        dense = shared.pairs[name].b_mr @ shared.pairs[name].a_rn
        assert np.linalg.norm(dense) > 1e-3
        np.testing.assert_allclose(dense, mean, atol=2e-4 * np.linalg.norm(dense), err_msg=name)


@pytest.mark.parametrize("method", ["fedavg", "svd"])
def test_a_restored_coordinator_goes_on_with_the_same_bits(method: str) -> None:
    config = quadratic_config(
        method=method, federation__algorithm="scaffold", train__learning_rate=0.02
    )
    whole, parts = regressions(config), regressions(config)
    for number in (1, 2):
        whole.round(number)
        parts.round(number)
    saved = snapshot(parts.strategy)
    roster = parts.strategy.roster
    parts.strategy = build_strategy(config)
    parts.strategy.roster = roster
    parts.strategy.load_state_dict(saved)

    whole.round(3)
    parts.round(3)

    assert whole.strategy.adapter.digest() == parts.strategy.adapter.digest()
    assert (
        snapshot(whole.strategy)["algorithm.lifted"].digest()
        == snapshot(parts.strategy)["algorithm.lifted"].digest()
    )


@pytest.mark.parametrize("fault", ["missing", "shape", "nan"])
def test_a_wrong_variate_from_a_site_is_refused(fault: str) -> None:
    from fedapp.codec import pack

    federation = federation_of([20, 20, 20])
    reply = federation.sites[0].train(federation.strategy, 1)
    payloads = dict(reply.payloads)
    if fault == "missing":
        del payloads["variate_change"]
    elif fault == "shape":
        payloads["variate_change"] = pack(Adapter({}, {"head.weight": np.zeros(3, np.float32)}))
    else:
        bad = np.array([np.nan, 0], np.float32)
        payloads["variate_change"] = pack(Adapter({}, {"head.weight": bad}))

    with pytest.raises(UpdateRefused, match="site site-0, round 1"):
        validate(federation.strategy, 1, type(reply)(**{**vars(reply), "payloads": payloads}))


def test_a_wrong_variate_from_the_coordinator_is_refused() -> None:
    federation = federation_of([20, 20, 20])
    strategy = federation.strategy
    sends = strategy.sends
    strategy.sends = lambda round, site: {"adapter": sends(round, site)["adapter"]}  # type: ignore[method-assign]

    with pytest.raises(UpdateRefused, match="coordinator's payload 'variate' is missing"):
        federation.sites[0].train(strategy, 1)


def test_both_halves_use_the_same_names() -> None:
    for name in ("DOWN", "UP", "ROUND", "CONTINUE", "CONTINUED"):
        assert getattr(client, name) == getattr(server, name)
