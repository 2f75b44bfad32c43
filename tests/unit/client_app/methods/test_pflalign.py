"""pFLAlign in the product's own loop against plain Python floats, its ablations and its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pflalign_loop import Coordinate, Loop
from quadratic import (
    QuadraticFederation,
    heads,
    parameters_of,
    quadratic_config,
    regressions,
    snapshot,
)
from torch.utils._python_dispatch import TorchDispatchMode

from client_app.methods.pflalign import PflAlign
from client_app.methods.pflalign_state import PflAlignState
from fedapp.adapter import Adapter, LoraPair
from fedapp.errors import SiteStateError
from fedapp.state import join_state

LOSSES = [
    (np.diag([1.0, 0.2, 0.7]), np.array([3.0, -1.0, 0.1])),
    (np.diag([0.3, 2.0, 0.7]), np.array([-2.0, 4.0, 0.1])),
    (np.diag([1.5, 1.0, 0.7]), np.array([0.0, 3.0, 0.1])),
]
EXAMPLES, ETA = [10, 20, 30], 0.3


def pflalign(**flat: Any) -> Any:
    return quadratic_config(method="pflalign", train__learning_rate=ETA, **flat)


def kept(site: Any) -> dict[str, Any]:
    state: dict[str, Any] = join_state(*site.kept[-1])
    return state


@pytest.mark.parametrize(
    ("flat", "loop"),
    [
        ({}, Loop()),
        ({"pflalign__bias_correction": False}, Loop(correct=False)),
        ({"pflalign__factor": "direct"}, Loop(direct=True)),
        ({"pflalign__beta": 0.5, "pflalign__eps": 1e-3}, Loop(beta=0.5, eps=1e-3)),
        ({"pflalign__gate": "scalar"}, Loop(gate="scalar")),
        ({"pflalign__gate": "hard"}, Loop(gate="hard")),
        ({"pflalign__gate": "none"}, Loop(gate="none")),
        ({"pflalign__gate": "full"}, Loop(gate="full")),
        ({"pflalign__share": "update"}, Loop()),
        ({"pflalign__personalisation": False}, Loop(personalisation=False)),
        ({"pflalign__local_update": False}, Loop(local_update=False)),
        ({"pflalign__local_update": False, "pflalign__gate": "full"},
         Loop(local_update=False, gate="full")),
    ],
    ids=["plain", "literal", "direct", "beta-eps", "scalar", "hard", "none", "full",
         "share-update", "no-personalisation", "no-local-update", "no-local-update-full"],
)  # fmt: skip
@pytest.mark.parametrize("steps", [1, 6])
def test_rounds_are_those_of_a_plain_loop(flat: dict[str, Any], loop: Loop, steps: int) -> None:
    federation = heads(pflalign(**flat), LOSSES, EXAMPLES, [steps] * 3)
    loop.eta = ETA
    shared = np.zeros(3)
    sites = [[Coordinate() for _ in range(3)] for _ in LOSSES]
    for number, chosen in enumerate([(0, 1, 2), (0, 2), (1, 2), (0, 1, 2)], start=1):
        updates = federation.round(number, [f"site-{k}" for k in chosen])

        ends, moved = [], {k: [x.delta != 0 for x in sites[k]] for k in chosen}
        for k in chosen:
            h, b = LOSSES[k]
            offset = np.array([x.delta for x in sites[k]])
            for x in sites[k]:
                x.gammas.clear()

            def slope(_: int, w: list[float], h: Any = h, b: Any = b) -> Any:
                return (h @ (np.array(w) - b)).tolist()

            loop.round(sites[k], shared.tolist(), slope, steps)
            end = np.array([x.theta for x in sites[k]])
            ends.append(end - offset if flat.get("pflalign__share") == "update" else end)
        shared = np.average(ends, axis=0, weights=[EXAMPLES[k] for k in chosen])
        np.testing.assert_allclose(federation.head, shared, rtol=2e-4, atol=2e-5)
        for update, k in zip(updates, chosen, strict=True):
            norm = np.linalg.norm([x.delta for x in sites[k]])
            if loop.personalisation:
                assert update.numbers["delta_norm"] == pytest.approx(norm, rel=1e-3, abs=1e-5)
            gammas = [x.gammas[-1] for x, m in zip(sites[k], moved[k], strict=True) if m]
            if "gate_mean" in update.numbers:
                assert update.numbers["gate_mean"] == pytest.approx(np.mean(gammas), abs=2e-3)
            if loop.local_update:
                mean = np.mean([x.p for x in sites[k]])
                assert update.numbers["factor_mean"] == pytest.approx(mean, rel=1e-3)
    if loop.personalisation and loop.gate != "none":
        assert "gate_mean" in updates[0].numbers


def test_with_both_halves_off_it_is_fedavg_bit_for_bit() -> None:
    off = regressions(
        quadratic_config(
            method="pflalign",
            pflalign__local_update=False,
            pflalign__personalisation=False,
            train__optimizer="adamw",  # which plain steps take no notice of
            train__weight_decay=0.01,
        )
    )
    plain = regressions(
        quadratic_config(
            method="fedavg",
            train__optimizer="sgd",
            train__momentum=0.0,
            train__weight_decay=0.01,
        )
    )
    for number in (1, 2, 3):
        updates = off.round(number)
        plain.round(number)
        assert off.strategy.adapter.digest() == plain.strategy.adapter.digest()

    assert not {"factor_mean", "alpha_mean", "gate_mean", "delta_norm"} & set(updates[0].numbers)
    assert not off.sites[0].kept, "there is nothing to keep"


def test_the_extension_steps_with_adamw() -> None:
    """With the factors at 1, which they are for a constant gradient at beta 0, it is AdamW."""
    config = {"pflalign__base": "adamw", "pflalign__personalisation": False, "pflalign__beta": 0.0}
    ours = regressions(quadratic_config(method="pflalign", train__optimizer="sgd", **config))
    plain = regressions(quadratic_config(method="fedavg", train__optimizer="adamw"))

    ours.round(1)
    plain.round(1)

    one, other = (dict(f.strategy.adapter.arrays()) for f in (ours, plain))
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], atol=2e-3, err_msg=name)


def test_a_full_gate_takes_the_whole_offset_away_in_a_round() -> None:
    """Then a site ends where it would have ended without an offset, on a loss that is linear."""
    federation = heads(pflalign(pflalign__gate="full"), LOSSES, EXAMPLES, [4] * 3)
    for site in federation.sites:
        site.loss = lambda live: live.tensors["head.weight"].sum()
    federation.round(1)
    shared = federation.head
    before = kept(federation.sites[0])["delta"].tensors["head.weight"]
    assert np.abs(before).min() > 0.01

    update = federation.round(2, ["site-0"])[0]

    assert update.numbers["delta_withdrawn"] == pytest.approx(1.0, rel=1e-5)
    step = update.adapter.tensors["head.weight"] - shared
    assert np.ptp(step) < 1e-6, "nothing of the old offset is left in it"


def test_it_learns_what_the_sites_do_not_share() -> None:
    """Sites with optima of their own end near them; what fedavg begins a round with is between."""
    ends = {}
    for method in ("pflalign", "fedavg"):
        config = quadratic_config(method=method, train__learning_rate=ETA)
        federation = heads(config, LOSSES, EXAMPLES, [5] * 3)
        for number in range(1, 41):
            federation.round(number)
        starts = [site.started.tensors["head.weight"] for site in federation.sites]
        ends[method] = np.mean(
            [np.linalg.norm(s - b) for s, (_, b) in zip(starts, LOSSES, strict=True)]
        )

    assert ends["pflalign"] < 0.5 * ends["fedavg"], ends


class HalfFrozen(PflAlign):
    """As under a method that never trains A."""

    def trainable(self, name: str) -> bool:
        return not name.endswith(".lora_A")


def rule_on(live: Any, kind: type[PflAlign] = PflAlign, **flat: Any) -> PflAlign:
    return kind(quadratic_config(method="pflalign", **flat), live)


def mixed(seed: int = 0, m: int = 6, n: int = 5) -> Any:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    pairs = {name: LoraPair(draw(m, 2), draw(2, n), 1.0) for name in ("q", "v")}
    return parameters_of(pairs, {"head.bias": draw(3), "head.weight": draw(3, m)})


def train_rule(rule: PflAlign, received: Adapter, steps: int, rate: float = 0.1) -> Adapter:
    """Move the rule's arrays by hand on the gradients of ``1/2 ||w - 1||^2``."""
    live = rule.parameters
    live.load(rule.start({"adapter": received}))
    rule.begin({"adapter": received}, {}, steps)
    for _ in range(steps):
        for name, array in live.named_arrays():
            if rule.trainable(name):
                draw = torch.rand(array.shape).to(array.device)
                array.grad = (array.detach() - 1) * draw
        rule.transform_gradients()
        with torch.no_grad():
            for name, array in live.named_arrays():
                if rule.trainable(name):
                    array -= rate * array.grad
                array.grad = None
        rule.after_step(rate)
    return rule.finish({"adapter": received})["adapter"]


def after_a_round(live: Any, steps: int, **flat: Any) -> tuple[Adapter, PflAlign]:
    """Return what was received and the rule of a site that has trained once."""
    received = live.read()
    first = rule_on(live, **flat)
    train_rule(first, received, steps)
    rule = rule_on(live, **flat)
    rule.load_state_dict(first.state_dict())
    return received, rule


def test_arrays_that_are_not_trained_have_no_offset_and_no_state() -> None:
    torch.manual_seed(0)
    live = mixed()
    received = live.read()
    first = rule_on(live, HalfFrozen)
    train_rule(first, received, 3)
    state = first.state_dict()
    second = rule_on(live, HalfFrozen)
    second.load_state_dict(state)

    start = dict(second.start({"adapter": received}).arrays())
    sent = dict(train_rule(second, received, 3).arrays())

    trained = {"q.lora_B", "v.lora_B", "head.bias", "head.weight"}
    for vector in ("delta", "second_moment", "factor"):
        assert set(state[vector].tensors) == trained
    for name, array in received.arrays():
        moved = name in trained
        assert np.array_equal(start[name], array) != moved
        assert np.array_equal(sent[name], array) != moved


def test_zero_gradients_and_arrays_without_a_gradient_leave_the_model_finite() -> None:
    live = mixed()
    received = live.read()
    rule = rule_on(live)
    rule.begin({"adapter": received}, {}, 2)
    for zero in (True, False):
        for _, array in live.named_arrays():
            array.grad = torch.zeros_like(array) if zero else None
        rule.transform_gradients()
        assert all(not array.grad.any() for _, array in live.named_arrays())
        rule.after_step(0.1)
    sent = rule.finish({"adapter": received})["adapter"]

    assert sent.digest() == received.digest()
    assert rule.numbers()["delta_norm"] == 0.0
    assert not any(name.startswith("gate") for name in rule.numbers()), "of no offset"
    again = rule_on(live)
    again.load_state_dict(rule.state_dict())
    train_rule(again, received, 2)
    assert all(np.isfinite(value) for value in again.numbers().values())


@pytest.mark.parametrize("span", [1, 4, 7, 1000])
def test_the_length_of_a_span_does_not_matter(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for length in (span, 10**6):
        monkeypatch.setattr("client_app.flat.CPU_SPAN", length)
        torch.manual_seed(1)
        live = mixed()
        received, second = after_a_round(live, 4)
        ends.append((train_rule(second, received, 4), second.numbers()))

    for (name, one), (_, other) in zip(ends[0][0].arrays(), ends[1][0].arrays(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)
    for key, value in ends[0][1].items():
        assert value == pytest.approx(ends[1][1][key], rel=1e-4), key


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("gate", ["coordinate", "scalar", "hard"])
def test_on_a_gpu_it_computes_what_a_cpu_does(gate: str) -> None:
    ends = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        live = mixed()
        for pair in live.pairs.values():
            pair.a_rn.data, pair.b_mr.data = pair.a_rn.data.to(device), pair.b_mr.data.to(device)
        for tensor in live.tensors.values():
            tensor.data = tensor.data.to(device)
        received, second = after_a_round(live, 4, pflalign__gate=gate)
        ends.append((train_rule(second, received, 4), second.numbers()))

    for (name, one), (_, other) in zip(ends[0][0].arrays(), ends[1][0].arrays(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-3)


class Allocated(TorchDispatchMode):
    """Counts the numbers of every tensor that is new, not a view of or written into another."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self._keep = 0, [torch.zeros(0)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name()
        written = name.endswith("_") or "_." in name or ".out" in name
        # lift_fresh wraps the arrays of what is kept, one after the other
        shared = ("view", "slice", "split", "detach", "alias", "lift_fresh")
        views = any(word in name for word in shared)
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and not written and not views:
                self._keep.append(tensor)
                self.numbers += tensor.numel()
        return out


@pytest.mark.parametrize("gate", ["coordinate", "full"])
def test_four_vectors_and_a_span_of_scratch_and_nothing_new_in_a_step(gate: str) -> None:
    live = mixed(m=30_000, n=25_000)
    received, rule = after_a_round(live, 1, pflalign__gate=gate)
    size = received.size
    with Allocated() as begin:
        rule.begin({"adapter": received}, {}, 2)
    for _, array in live.named_arrays():
        array.grad = torch.ones_like(array)
    with Allocated() as step:
        rule.transform_gradients()
        rule.after_step(0.1)

    assert size > 5 * 2**15
    assert 4 * size <= begin.numbers <= 4 * size + 2 * 2**15 + 3
    assert step.numbers < 100, "scalars alone"


def test_a_step_has_no_loop_over_the_arrays() -> None:
    """The number of calls depends on the numbers, not on how many arrays hold them."""

    class Calls(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            self.count += func.name() not in ("aten::zeros_like", "aten::view", "aten::detach")
            return func(*args, **(kwargs or {}))

    counts = []
    for heads_ in (1, 40):
        tensors = {f"h{k:02}": np.ones(40 // heads_ * 10, np.float32) for k in range(heads_)}
        live = parameters_of({}, tensors)
        received, rule = after_a_round(live, 1)
        rule.begin({"adapter": received}, {}, 1)
        for _, array in live.named_arrays():
            array.grad = torch.ones_like(array)
        with Calls() as calls:
            rule.transform_gradients()
            rule.after_step(0.1)
        counts.append(calls.count)

    assert counts[0] == counts[1]


def test_the_state_comes_back_as_it_was() -> None:
    live = mixed()
    rule = rule_on(live)
    train_rule(rule, live.read(), 3)
    state = rule.state_dict()

    again = rule_on(live)
    again.load_state_dict(state)
    unchanged = again.state_dict()

    assert set(state) == {"delta", "second_moment", "factor", "steps"}
    assert unchanged["steps"] == state["steps"] == 3
    for vector in ("delta", "second_moment", "factor"):
        assert unchanged[vector].digest() == state[vector].digest()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"delta": Adapter({}, {"q.lora_A": np.zeros((2, 5), np.float32)})}, "'delta'.*None for"),
        ({"second_moment": "text"}, "'second_moment'"),
        ({"steps": -1}, "'steps'.*-1"),
        ({"steps": None}, "'steps'.*None"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_in_a_sentence(
    change: dict[str, Any], words: str
) -> None:
    live = mixed()
    rule = rule_on(live)
    train_rule(rule, live.read(), 1)

    with pytest.raises(
        SiteStateError, match=words + ".*state folder, and it begins with no offset"
    ):
        rule_on(live).load_state_dict({**rule.state_dict(), **change})


def test_nothing_kept_is_nothing_to_store() -> None:
    assert PflAlignState().to_state() == {}


def test_the_coordinator_keeps_the_model_alone_and_tells_the_means() -> None:
    federation: QuadraticFederation = heads(pflalign(), LOSSES, EXAMPLES, [4] * 3)
    federation.round(1)
    updates = federation.round(2)

    assert set(snapshot(federation.strategy)) == {"adapter"}
    for name in ("factor_mean", "alpha_mean", "gate_mean", "delta_withdrawn", "delta_norm"):
        mean = np.mean([u.numbers[name] for u in updates])
        assert federation.numbers[name] == pytest.approx(mean)
    assert set(updates[0].payloads) == {"adapter"}, "nothing personal is sent beside the model"
