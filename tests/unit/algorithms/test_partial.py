"""FFA-LoRA and FedSA-LoRA: what travels, what is averaged, what stays, and the formulas."""

from __future__ import annotations

import numpy as np
import pytest
from quadratic import heads, quadratic_config, regressions

from fedapp.adapter import Adapter
from fedapp.codec import pack
from fedapp.errors import ConfigError, UpdateRefused
from server_app.training_round import validate

SHARES = np.array([10, 15, 20]) / 45


def test_ffa_averages_b_and_heads_over_one_a() -> None:
    federation = regressions(quadratic_config(method="ffa-lora", train__learning_rate=0.05))
    a_rn = federation.initial.pairs["q"].a_rn
    for number in (1, 2, 3):
        updates = federation.round(number)
        assert set(updates[0].payloads["adapter"].layout.tensors) == {"q.lora_B", "head.weight"}
        sent = [dict(u.adapter.arrays()) for u in updates]

        pair = federation.strategy.adapter.pairs["q"]
        assert pair.a_rn is a_rn or np.array_equal(pair.a_rn, a_rn)
        b_mr = sum(p * s["q.lora_B"] for p, s in zip(SHARES, sent, strict=True))
        np.testing.assert_allclose(pair.b_mr, b_mr, atol=1e-6)
        # the mean of the products, exactly
        dense = sum(p * s["q.lora_B"] @ a_rn for p, s in zip(SHARES, sent, strict=True))
        np.testing.assert_allclose(pair.b_mr @ a_rn, dense, atol=1e-5)
        assert federation.numbers["merge_error"] < 1e-6
        head = sum(p * s["head.weight"] for p, s in zip(SHARES, sent, strict=True))
        np.testing.assert_allclose(federation.head, head, atol=1e-6)


def test_ffa_trains_b_as_plain_descent_does() -> None:
    eta = 0.05
    federation = regressions(quadratic_config(method="ffa-lora", train__learning_rate=eta))
    a = federation.initial.pairs["q"].a_rn.astype(np.float64)

    updates = federation.round(1)

    for site, update in zip(federation.sites, updates, strict=True):
        target, x = site.loss.target_mn.double().numpy(), site.loss.x_nt.double().numpy()
        b = np.zeros((6, 2))
        for _ in range(site.steps):
            b = b - eta * (b @ a - target) @ x @ (a @ x).T / x.shape[1]
        np.testing.assert_allclose(update.adapter.tensors["q.lora_B"], b, atol=1e-5)


def test_fedsa_averages_a_and_every_site_goes_on_with_its_own_b_and_head() -> None:
    federation = regressions(quadratic_config(method="fedsa-lora", train__learning_rate=0.05))
    own: dict[str, dict[str, np.ndarray]] = {}
    for number in (1, 2, 3):
        shared = federation.strategy.adapter.pairs["q"].a_rn
        updates = federation.round(number)
        for site in federation.sites:
            started = dict(site.started.arrays())
            np.testing.assert_array_equal(started["q.lora_A"], shared)
            for name in ("q.lora_B", "head.weight"):
                expected = own.get(site.name, dict(federation.initial.arrays()))[name]
                np.testing.assert_array_equal(started[name], expected)
            own[site.name] = {n: a.copy() for n, a in site.live.read().arrays()}
        assert set(updates[0].payloads["adapter"].layout.tensors) == {"q.lora_A"}
        a_rn = sum(p * u.adapter.tensors["q.lora_A"] for p, u in zip(SHARES, updates, strict=True))
        adapter = federation.strategy.adapter
        np.testing.assert_allclose(adapter.pairs["q"].a_rn, a_rn, atol=1e-6)
        assert not adapter.pairs["q"].b_mr.any(), "no site's B is at the coordinator"
        initial = federation.initial.tensors["head.weight"]
        np.testing.assert_array_equal(adapter.tensors["head.weight"], initial)
    assert np.abs(own["site-0"]["q.lora_B"] - own["site-1"]["q.lora_B"]).max() > 0.05


@pytest.mark.parametrize("method", ["ffa-lora", "fedsa-lora"])
def test_what_must_not_travel_is_refused(method: str) -> None:
    federation = regressions(quadratic_config(method=method))
    site = federation.sites[1]
    reply = site.train(federation.strategy, 1)
    whole = dict(site.live.read().arrays())
    payloads = {"adapter": pack(Adapter({}, whole))}

    with pytest.raises(UpdateRefused, match=r"site site-1, round 1: tensor '.*' is not part of"):
        validate(federation.strategy, 1, type(reply)(**{**vars(reply), "payloads": payloads}))


@pytest.mark.parametrize(("change", "word"), [("drop", "lacks"), ("add", "has an unknown")])
def test_a_site_refuses_another_part_than_expected(change: str, word: str) -> None:
    federation = regressions(quadratic_config(method="ffa-lora"))
    part = dict(federation.strategy.payloads(1, "site-0")["adapter"].tensors)
    if change == "drop":
        del part["q.lora_B"]
    else:
        part["q.lora_A"] = federation.initial.pairs["q"].a_rn
    federation.strategy.payloads = lambda round, site: {"adapter": Adapter({}, part)}  # type: ignore[method-assign]

    with pytest.raises(UpdateRefused, match=f"coordinator's adapter {word} array 'q.lora_"):
        federation.sites[0].train(federation.strategy, 1)


def test_a_run_must_begin_with_the_seeded_adapter() -> None:
    federation = regressions(quadratic_config(method="ffa-lora"))

    with pytest.raises(ConfigError, match="start it without initial arrays"):
        federation.strategy.begin(federation.initial.map(lambda _, array: array + 1))


def test_a_held_out_site_has_no_model_of_its_own() -> None:
    with pytest.raises(
        ConfigError, match=r"federation\.held-out names Basel, but with method fedsa"
    ):
        quadratic_config(method="fedsa-lora", federation__held_out="Basel")


def test_an_adapter_without_pairs_trains_its_heads() -> None:
    losses = [(np.eye(2), np.array([1.0, 2.0]))]
    federation = heads(quadratic_config(method="ffa-lora"), losses, [10], [5])

    federation.round(1)

    np.testing.assert_allclose(federation.head, (1 - 0.9**5) * losses[0][1], atol=1e-6)
