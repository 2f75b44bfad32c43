"""A site's policy: every rule, what is withheld, the norm of an update, and opening hours."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedapp
from fedapp.adapter import Adapter, LoraPair
from fedapp.config import RunConfig
from fedapp.config_policy import PolicySection
from fedapp.errors import PolicyRefused
from fedapp.exchange import Action, Reply
from fedapp.opening_hours import is_open, parse_span
from fedapp.policy import RULES, Request, check_request, check_steps, clip_updates, withhold

MONDAY = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
CONFIG = RunConfig.from_flat({"method": "fedavg", "lora.rank": 8, "federation.rounds": 10})


def request(**changes):
    fields = {
        "config": CONFIG, "round": 1, "app_version": fedapp.__version__, "coordinator": "uni",
        "now": MONDAY, **changes,
    }  # fmt: skip
    return Request(**fields)


def policy(**fields):
    return PolicySection.model_validate(fields)


def refusal(rules, asked):
    with pytest.raises(PolicyRefused) as caught:
        check_request(rules, asked)
    assert f"rule '{caught.value.reason}'" in caught.value.message
    return caught.value.reason


def test_the_default_policy_lets_an_equal_version_in():
    check_request(PolicySection(), request())


BROKEN = {
    "app-versions": (policy(), {"app_version": "0.0.9"}),
    "coordinators": (policy(coordinators=["clinic"]), {}),
    "hours": (policy(hours=["tue-sun 00:00-24:00"], **{"time-zone": "UTC"}), {}),
    "methods": (policy(methods="svd,dysco"), {}),
    "algorithms": (policy(algorithms=["scaffold"]), {}),
    "base-models": (policy(**{"base-models": ["hub/model"]}), {}),
    "max-rank": (policy(**{"max-rank": 7}), {}),
    "max-rounds": (policy(**{"max-rounds": 9}), {}),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_every_rule_refuses_by_its_name(rule):
    rules, changes = BROKEN[rule]

    assert refusal(rules, request(**changes)) == rule


def test_the_rules_are_those_of_the_list():
    with pytest.raises(PolicyRefused) as caught:
        check_steps(policy(**{"max-local-steps": 4}), 5)

    assert {*BROKEN, caught.value.reason} == set(RULES)
    check_steps(policy(**{"max-local-steps": 5}), 5)
    check_steps(policy(), 10**6)


def test_a_round_beyond_the_last_one_counts_too():
    rules = policy(**{"max-rounds": 10})

    check_request(rules, request(round=10))
    assert refusal(rules, request(round=11)) == "max-rounds"


def test_hours_are_those_of_the_zone():
    rules = policy(hours=["mon 13:00-14:00"], **{"time-zone": "Europe/Zurich"})

    check_request(rules, request())
    assert refusal(rules, request(now=MONDAY.replace(hour=13))) == "hours"
    check_request(rules, request(now=MONDAY.replace(hour=13), begun=True))


@pytest.mark.parametrize(
    ("span", "open_at", "shut_at"),
    [
        ("mon-fri 18:00-24:00", [(0, 18, 0), (4, 23, 59)], [(0, 17, 59), (5, 18, 0), (1, 0, 0)]),
        ("fri-mon 00:00-24:00", [(4, 0, 0), (6, 12, 0), (0, 1, 0)], [(1, 0, 0), (3, 23, 59)]),
        ("sun 22:00-06:00", [(6, 22, 0), (0, 5, 59)], [(6, 5, 0), (0, 6, 0), (0, 22, 0)]),
        ("wed 12:30-12:31", [(2, 12, 30)], [(2, 12, 31), (2, 12, 29)]),
    ],
)
def test_opening_hours(span, open_at, shut_at):
    def at(day, hour, minute):
        return datetime(2026, 11, 30 + 0, hour, minute).replace(day=23 + day)  # a Monday

    spans = [parse_span(span)]
    assert all(is_open(spans, at(*moment)) for moment in open_at)
    assert not any(is_open(spans, at(*moment)) for moment in shut_at)


@pytest.mark.parametrize(
    "text", ["", "always", "mon", "mon 8-9", "mon 25:00-26:00", "mon 08:00-08:00",
             "xyz 08:00-09:00", "mon 08:61-09:00", "mon 24:00-24:00", "mon-fri-sun 08:00-09:00"],
)  # fmt: skip
def test_what_is_no_opening_hour_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_span(text)


def reply(**metrics):
    numbers = {"train_loss": 0.5, "steps": 3.0, "seconds": 1.0, "penalty": 0.1, "own_steps": 2.0}
    return Reply("Bern", 1, Action.TRAIN, metrics=metrics, weight=20.0, numbers=numbers)


def test_metrics_of_few_records_are_withheld():
    few, enough = {"accuracy": 0.5, "examples": 9.0}, {"accuracy": 0.5, "examples": 10.0}
    asked = reply(
        **{"received/validation": few, "personal/test": enough, "personal/validation": {}}
    )

    kept, withheld = withhold(PolicySection(), asked, "sequence-classification", 10)
    everything, none = withhold(policy(**{"min-records": 0}), asked, "sequence-classification", 0)

    assert kept.metrics == {"personal/test": enough}
    assert kept.numbers == asked.numbers
    assert withheld == ["received/validation", "personal/validation"]
    assert (everything, none) == (asked, [])


def test_numbers_of_a_small_training_are_withheld_but_not_its_costs():
    kept, withheld = withhold(PolicySection(), reply(), "sequence-classification", 9)

    assert set(kept.numbers) == {"steps", "seconds", "own_steps"}
    assert withheld == ["penalty", "train_loss"]


def test_metrics_of_single_classes_are_withheld_unless_allowed():
    table = {"accuracy": 0.5, "f1": 0.4, "recall_ill": 0.1, "examples": 50.0}
    asked = reply(**{"received/validation": table})

    kept, withheld = withhold(PolicySection(), asked, "sequence-classification", 50)
    allowed, _ = withhold(
        policy(**{"per-class-metrics": True}), asked, "sequence-classification", 50
    )

    assert set(kept.metrics["received/validation"]) == {"accuracy", "f1", "examples"}
    assert withheld == ["received/validation/recall_ill"]
    assert allowed.metrics == asked.metrics


def some(rng, scale=1.0):
    def array(*shape):
        return (scale * rng.normal(size=shape)).astype(np.float32)

    return Adapter({"layer": LoraPair(array(4, 2), array(2, 3), 1.0)}, {"head": array(3)})


def length(adapter, base):
    start = dict(base.arrays())
    return np.linalg.norm(
        np.concatenate([(a.astype(float) - start[n]).ravel() for n, a in adapter.arrays()])
    )


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_an_update_is_not_longer_than_the_norm_and_keeps_its_direction(seed, norm):
    rng = np.random.default_rng(seed)
    base, sent = some(rng), some(rng)

    clipped, factor = clip_updates({"adapter": sent}, {"adapter": base}, norm)

    before = length(sent, base)
    assert length(clipped["adapter"], base) == pytest.approx(min(norm, before), rel=1e-3, abs=1e-5)
    assert factor == pytest.approx(min(1.0, norm / before))
    start, end = dict(base.arrays()), dict(sent.arrays())
    for name, array in clipped["adapter"].arrays():
        expected = start[name] + factor * (end[name] - start[name])
        assert np.allclose(array, expected, rtol=1e-4, atol=1e-5)


def test_a_payload_without_a_base_is_measured_from_zero():
    rng = np.random.default_rng(0)
    sent = some(rng)
    zero = sent.map(lambda _, array: np.zeros_like(array))

    clipped, _ = clip_updates({"variate": sent}, {"adapter": some(rng)}, 0.5)
    untouched, factor = clip_updates({"variate": sent}, {}, 0.0)

    assert length(clipped["variate"], zero) == pytest.approx(0.5, rel=1e-5)
    assert untouched["variate"] is sent
    assert factor == 1.0
