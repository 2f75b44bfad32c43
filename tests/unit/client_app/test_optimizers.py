"""Schedules and step counts against values worked out by hand."""

import pytest

from client_app.optimizers import learning_rate, planned_steps, steps_per_epoch
from fedapp.config import RunConfig


def section(**flat):
    return RunConfig.from_flat({f"train.{key}": value for key, value in flat.items()}).train


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        # cosine at progress 0, 1/8, ..., 7/8
        ("cosine", [0.5, 1, 1, 0.96194, 0.85355, 0.69134, 0.5, 0.30866, 0.14645, 0.03806]),
    ],
)
def test_warm_up_and_decay_over_the_whole_run(schedule, expected):
    train = section(schedule=schedule, **{"warmup-fraction": 0.2, "learning-rate": 2.0})

    rates = [learning_rate(step, 10, train) for step in range(10)]

    assert rates == pytest.approx([2 * value for value in expected], abs=2e-5)


def test_a_step_past_the_end_still_trains():
    train = section(schedule="linear")

    assert learning_rate(99, 10, train) == learning_rate(9, 10, train) > 0


@pytest.mark.parametrize(
    ("examples", "batch", "accumulation", "steps"),
    [(1, 16, 1, 1), (16, 16, 1, 1), (17, 16, 1, 2), (17, 16, 2, 1), (100, 16, 3, 3)],
)
def test_steps_per_epoch(examples, batch, accumulation, steps):
    train = section(**{"batch-size": batch, "gradient-accumulation": accumulation})

    assert steps_per_epoch(train, examples) == steps


def test_max_steps_limits_a_round_and_scales_with_the_rounds_of_local_only():
    train = section(**{"batch-size": 10, "local-epochs": 2, "max-steps": 5})

    assert planned_steps(train, 40, epochs=2) == 5  # 8 without the limit
    assert planned_steps(train, 40, epochs=6) == 15  # three rounds' worth
    assert planned_steps(train, 10, epochs=2) == 2
