"""A model that would spoil the mix is refused alone, by rules and worlds written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.errors import MergeRefused, TrainingError
from fedapp.peer_rules.base import Context, Mixed, Neighbour, PeerRule, View
from fedapp.peer_rules.unmixable import UNMIXABLE, mix_usable
from fedapp.registry import METHODS, load_half

OPEN = {"lightyear.kernel-gate": "off", "lightyear.prediction": -1.0, "lightyear.distance": 0.0}
RULES = [name for name, method in METHODS.items() if method.peer_rule and name != "clipping"]
# Of one that spoils it clipping takes no more than the others' distance; of two see below.


def model(*numbers: float) -> Adapter:
    return Adapter({}, {"head.bias": np.array(numbers, np.float32)})


def numbers_of(adapter: Adapter) -> list[float]:
    return [float(number) for number in adapter.tensors["head.bias"]]


def view(adapter: Adapter) -> View:
    rows = np.random.default_rng(0).standard_normal((20, 2))
    return View(rows, rows * adapter.tensors["head.bias"][0], np.zeros(20, np.int64))


def world(method: str, **flat: Any) -> tuple[PeerRule, Context]:
    settings = OPEN if method == "lightyear" else {}
    config = RunConfig.from_flat({"method": method, **settings, **flat})
    context = Context(
        config, "here", 1, view, lambda adapter: float(adapter.tensors["head.bias"][0])
    )
    return load_half(METHODS[method].peer_rule)(config), context


def judge(limit: float) -> Callable[[Adapter], float]:
    """Outputs are finite up to a limit."""

    def judged(adapter: Adapter) -> float:
        largest = float(np.abs(adapter.tensors["head.bias"]).max())
        if largest > limit:
            raise TrainingError("the loss is not finite")
        return largest

    return judged


def named(**models: Adapter) -> list[Neighbour]:
    return [Neighbour(name, models[name]) for name in sorted(models)]


def test_of_four_the_one_that_spoils_the_mix_is_refused_and_the_others_are_mixed() -> None:
    rule, context = world("lightyear")
    own = model(1, 2)
    others = named(bad=model(900, 0), left=model(1, 4), right=model(4, 0))

    mixed, judged = mix_usable(rule, own, others, context, judge(100))

    assert numbers_of(mixed.model) == pytest.approx([2, 2])  # as if `bad` had not been heard
    assert judged == pytest.approx(2)
    assert mixed.own_weight == pytest.approx(1 / 3)
    bad, left, right = mixed.verdicts
    assert (bad.accepted, bad.weight, bad.refused_by) == (False, 0.0, (UNMIXABLE,))
    assert bad.scores["distance"] == pytest.approx(np.hypot(899, 2) / np.hypot(1, 2))
    assert [one.weight for one in (left, right)] == pytest.approx([1 / 3, 1 / 3])


@pytest.mark.parametrize("method", RULES)
def test_every_rule_gives_what_it_gives_without_the_one_that_spoils(method: str) -> None:
    rule, context = world(method, **{"balance.gamma": 1000.0} if method == "balance" else {})
    own, near, huge = model(1, 2), model(1, 4), model(900, 0)

    mixed, _ = mix_usable(rule, own, named(a=huge, b=near), context, judge(100))

    expected = rule.mix(own, named(b=near), context)
    assert mixed.model.digest() == expected.model.digest()
    first, second = mixed.verdicts
    assert (first.accepted, first.weight) == (False, 0.0)
    assert (second.peer, second.accepted) == ("b", expected.verdicts[0].accepted)


def test_a_mix_that_does_not_spoil_is_the_rules_own_and_nothing_is_looked_at_twice() -> None:
    rule, context = world("lightyear")
    own, asked = model(1, 2), []

    def judged(adapter: Adapter) -> float:
        asked.append(adapter)
        return 0.0

    others = named(left=model(1, 4), right=model(4, 0))
    mixed, _ = mix_usable(rule, own, others, context, judged)

    expected = rule.mix(own, others, context)
    assert mixed.model.digest() == expected.model.digest()
    assert mixed.verdicts == expected.verdicts
    assert len(asked) == 1


def test_what_others_would_refuse_spoils_a_mix_as_well() -> None:
    """A site whose numbers are beyond what anybody takes is out of the federation."""
    rule, context = world("lightyear")
    others = named(bad=model(9e6, 0), left=model(1, 4))

    mixed, _ = mix_usable(rule, model(1, 2), others, context, judge(np.inf))

    assert [one.refused_by for one in mixed.verdicts] == [(UNMIXABLE,), ()]
    assert numbers_of(mixed.model) == pytest.approx([1, 3])


def test_a_rule_that_cannot_mix_at_all_names_whom_it_is_because_of() -> None:
    class Refusing:
        def __init__(self, config: RunConfig) -> None: ...

        def mix(self, own: Adapter, neighbours: Any, context: Context) -> Mixed:
            if any(not np.isfinite(one.model.tensors["head.bias"]).all() for one in neighbours):
                raise MergeRefused("model 1 holds NaN or Inf; refuse it before it is mixed")
            return world("gossip-average")[0].mix(own, neighbours, context)

    rule, context = Refusing(RunConfig()), world("gossip-average")[1]
    others = named(a=model(1, 4), b=model(np.inf, 0), c=model(4, 0))

    mixed, _ = mix_usable(rule, model(1, 2), others, context, judge(100))

    assert [one.refused_by for one in mixed.verdicts] == [(), (UNMIXABLE,), ()]
    assert numbers_of(mixed.model) == pytest.approx([2, 2])


def test_of_two_that_spoil_it_together_the_farther_is_refused() -> None:
    rule, context = world("gossip-average")
    others = named(a=model(200, 2), b=model(160, 2), c=model(1, 2))

    mixed, _ = mix_usable(rule, model(1, 2), others, context, judge(90))

    assert [one.refused_by for one in mixed.verdicts] == [(UNMIXABLE,), (), ()]
    assert numbers_of(mixed.model) == pytest.approx([54, 2])


def test_two_colluders_spoil_a_clipped_mix_and_the_one_that_does_no_harm_is_kept() -> None:
    """The radius is the second largest distance: with two of them, theirs."""
    rule, context = world("clipping")
    own, others = model(1, 2), named(a=model(900, 0), b=model(1, 4), c=model(800, 0))
    with pytest.raises(TrainingError):
        judge(100)(rule.mix(own, others, context).model)

    mixed, judged = mix_usable(rule, own, others, context, judge(100))

    assert [one.refused_by for one in mixed.verdicts] == [(UNMIXABLE,), (), ()]
    expected = rule.mix(own, others[1:], context)  # `c` is clipped to the distance of `b`
    assert mixed.model.digest() == expected.model.digest()
    assert judged == pytest.approx(np.abs(numbers_of(expected.model)).max())
    assert judged < 4


def test_what_the_search_found_out_is_told_though_the_first_mix_failed() -> None:
    """Scores of who is refused, and the rule's numbers where nobody is left."""
    lightyear, context = world(
        "lightyear", **{"lightyear.kernel-gate": "calibrated", "lightyear.kernel": 0.0}
    )

    class OnceRefusing:
        asked = 0

        def __init__(self, config: RunConfig) -> None: ...

        def mix(self, own: Adapter, neighbours: Any, context: Context) -> Mixed:
            self.asked += 1
            if self.asked == 1:
                raise MergeRefused("the mixed model would be non-finite")
            return lightyear.mix(own, neighbours, context)

    own, huge = model(1, 2), model(900, 0)

    mixed, _ = mix_usable(OnceRefusing(RunConfig()), own, named(a=huge), context, judge(100))

    assert mixed.model is own
    (verdict,) = mixed.verdicts
    assert verdict.refused_by == (UNMIXABLE,)
    assert verdict.scores["distance"] == pytest.approx(np.hypot(899, 2) / np.hypot(1, 2))
    asked = lightyear.mix(own, named(a=huge), context).numbers
    assert {"mixing_step", "null_agreement"} < asked.keys()
    assert mixed.numbers == {**asked, "mixing_error": 0.0}
    again, _ = mix_usable(lightyear, own, named(a=huge), context, judge(100))
    assert again.numbers == mixed.numbers


def test_if_all_spoil_it_the_own_model_stays_and_if_that_is_spoilt_it_is_an_error() -> None:
    rule, context = world("gossip-average")
    own, others = model(1, 2), named(a=model(900, 0), b=model(-900, 900))

    mixed, judged = mix_usable(rule, own, others, context, judge(100))

    assert (mixed.model, mixed.own_weight, judged) == (own, 1.0, 2.0)
    assert [one.refused_by for one in mixed.verdicts] == [(UNMIXABLE,)] * 2
    with pytest.raises(TrainingError):
        mix_usable(rule, own, others, context, judge(1.5))
    with pytest.raises(TrainingError):
        mix_usable(rule, own, [], context, judge(1.5))


def test_models_are_looked_at_once_however_often_the_rule_is_asked() -> None:
    looked: list[str] = []

    def counting(adapter: Adapter) -> View:
        looked.append(adapter.digest())
        return view(adapter)

    rule, context = world("lightyear")
    context = Context(context.config, "here", 1, counting, context.loss)
    others = named(**{f"p{index}": model(1, 3 + index) for index in range(6)}, z=model(900, 0))

    mix_usable(rule, model(1, 2), others, context, judge(100))

    assert all(looked.count(one) <= 2 for one in looked)


def test_losses_are_asked_for_once_however_often_the_rule_is_asked() -> None:
    asked: list[str] = []

    def loss(adapter: Adapter) -> float:
        asked.append(adapter.digest())
        return float(adapter.tensors["head.bias"][0])

    rule, context = world("ubar", **{"ubar.rho": 1.0})
    context = Context(context.config, "here", 1, view, loss)
    others = named(**{f"p{index}": model(1, 3 + index) for index in range(4)}, z=model(-9000, 0))

    mixed, _ = mix_usable(rule, model(1, 2), others, context, judge(100))

    assert mixed.verdicts[-1].refused_by == (UNMIXABLE,)
    assert all(asked.count(one) <= 2 for one in asked), "in the first mix, and in the search"
