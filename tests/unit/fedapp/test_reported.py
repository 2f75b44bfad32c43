"""No number of a site reaches a file or a sum unchecked."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedapp.errors import UpdateRefused
from fedapp.exchange import Action, Reply
from fedapp.reported import MOST, ROW_KEYS, check_reported
from fedapp.validation import REASONS

GOOD: dict[str, float] = {"accuracy": 0.5, "loss": 1e3, "auc": 0.5, "f1": 0.0, "examples": 10}
NUMBERS: dict[str, float] = {
    "seconds": 0.0,
    "training_seconds": 1.5,
    "steps": 3,
    "train_loss": 0.1,
    "drift": -2.0,
}


def _reply(metrics: Any = None, numbers: Any = None) -> Reply:
    return Reply(
        "Basel",
        4,
        Action.TRAIN,
        metrics={"personal/validation": GOOD} if metrics is None else metrics,
        numbers=NUMBERS if numbers is None else numbers,
    )


def _metric(**changes: float) -> Reply:
    return _reply({"personal/validation": {**GOOD, **changes}})


def _number(**changes: float) -> Reply:
    return _reply(numbers={**NUMBERS, **changes})


def test_good_numbers_pass_unchanged() -> None:
    reply = _reply({f"{p}/{s}": GOOD for p in ("received", "local-only") for s in ("test",)})

    assert check_reported(reply) == reply


def test_an_undefined_metric_is_left_out() -> None:
    checked = check_reported(_metric(auc=math.nan, f1=math.nan))

    assert checked.metrics == {
        "personal/validation": {"accuracy": 0.5, "loss": 1e3, "examples": 10}
    }
    assert check_reported(_number(drift=math.nan)).numbers == {
        key: value for key, value in NUMBERS.items() if key != "drift"
    }


BAD: dict[str, tuple[Reply, str]] = {
    "loss nan": (_metric(loss=math.nan), "'loss' of the metrics of personal/validation must be"),
    "accuracy nan": (_metric(accuracy=math.nan), "must be finite, got nan"),
    "examples nan": (_metric(examples=math.nan), "must be finite, got nan"),
    "auc inf": (_metric(auc=math.inf), "'auc' .* must be finite, got inf"),
    "accuracy above 1": (_metric(accuracy=1.5), "must be between 0 and 1, got 1.5"),
    "f1 below 0": (_metric(f1=-0.1), "must be between 0 and 1, got -0.1"),
    "examples below 0": (_metric(examples=-1.0), "must be at least 0, got -1.0"),
    "loss absurd": (_metric(loss=1e300), r"must be at most 1e\+15 in magnitude, got 1e\+300"),
    "seconds nan": (_number(seconds=math.nan), "'seconds' of the site's numbers must be finite"),
    "seconds below 0": (_number(training_seconds=-1.0), "'training_seconds' .* at least 0"),
    "steps inf": (_number(steps=math.inf), "'steps' .* must be finite, got inf"),
    "loss inf": (_number(train_loss=-math.inf), "'train_loss' .* must be finite, got -inf"),
    "number absurd": (_number(drift=-1e20), r"at most 1e\+15 in magnitude, got -1e\+20"),
    "number like a metric": (_number(accuracy=0.5), "'accuracy', which cannot be the name"),
    "number like a key": (_number(bytes_up=0.5), "'bytes_up', which cannot be the name"),
    "phase": (_reply({"secret/test": GOOD}), "metrics of 'secret/test'; expected one of received"),
    "split": (_reply({"personal/train": GOOD}), "metrics of 'personal/train'"),
    "no split": (_reply({"personal": GOOD}), "metrics of 'personal'"),
    "empty name": (_reply({"personal/test": {"": 1.0}}), "hold '', which cannot be"),
    "name with a space": (_reply({"personal/test": {"a b": 1.0}}), "hold 'a b', which cannot be"),
    "name with a line": (_reply({"personal/test": {"a\nb": 1.0}}), "which cannot be the name"),
    "metric of no task": (
        _metric(kappa=0.5),
        "hold 'kappa', expected of sequence-classification only accuracy, loss, auc, f1, examples",
    ),
    "metric of another task": (_metric(rouge_l=0.5), "hold 'rouge_l', expected of sequence-class"),
    "number like another task's": (_number(rouge_l=0.5), "'rouge_l', which cannot be the name"),
    "long name": (_reply({"personal/test": {"a" * 65: 1.0}}), "which cannot be the name"),
    "too many": (
        _reply({"personal/test": {f"m{number}": 0.0 for number in range(MOST + 1)}}),
        "hold at most 100 numbers, got 101",
    ),
    **{
        f"metric named {key}": (_metric(**{key: 1.0}), f"'{key}', which cannot be the name")
        for key in sorted(ROW_KEYS)
    },
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_number_is_refused_by_name(name: str) -> None:
    reply, sentence = BAD[name]

    with pytest.raises(UpdateRefused, match=sentence) as caught:
        check_reported(reply)
    assert caught.value.reason == "bad-metrics"
    assert "bad-metrics" in REASONS
    assert str(caught.value).startswith("site Basel, round 4: ")
    assert "\n" not in str(caught.value)


WRITTEN = {
    "loss": 0.5,
    "perplexity": 1.65,
    "token_accuracy": 0.9,
    "exact_match": 0.5,
    "rouge_l": 0.25,
    "response_tokens": 99.0,
    "generated": 64.0,
    "cut_prompts": 0.0,
    "examples": 70.0,
}


def test_a_language_model_reports_its_own_metrics() -> None:
    reply = _reply({"personal/test": WRITTEN})

    assert check_reported(reply, "causal-lm") == reply


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "accuracy",
            0.5,
            "hold 'accuracy', expected of causal-lm only loss, perplexity, token_acc",
        ),
        ("perplexity", 0.99, "'perplexity' .* must be at least 1, got 0.99"),
        ("rouge_l", 1.01, "must be between 0 and 1"),
        ("exact_match", -0.1, "must be between 0 and 1"),
        ("token_accuracy", math.nan, "must be finite"),
        ("generated", -1.0, "must be at least 0"),
    ],
)
def test_a_language_model_s_numbers_are_checked(name: str, value: float, sentence: str) -> None:
    with pytest.raises(UpdateRefused, match=sentence):
        check_reported(_reply({"personal/test": {**WRITTEN, name: value}}), "causal-lm")
