"""What may leave the building when something goes wrong."""

import logging

import pytest
import torch

from client_app.failures import to_failure
from fedapp.errors import DataError, TrainingError


def caught(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


def test_our_own_sentence_leaves_with_site_and_round():
    failure = to_failure(TrainingError("the loss became NaN"), "north", 4)

    assert failure.kind == "TrainingError"
    assert failure.message == "site north, round 4: the loss became NaN"


def test_site_and_round_are_not_said_twice_and_the_error_is_not_changed():
    error = DataError("no records", site="south")

    messages = [to_failure(error, "south", round).message for round in (0, 2)]

    assert messages == ["site south: no records", "site south, round 2: no records"]
    assert error.round is None


def test_the_text_of_an_unexpected_error_stays_in_the_local_log(caplog):
    error = caught(lambda: int("patient Miller, 61"))

    with caplog.at_level(logging.ERROR):
        failure = to_failure(error, "north", 1)

    assert failure.kind == "UnexpectedError"
    assert "Miller" not in failure.message
    assert failure.message.startswith("site north, round 1: ValueError at test_failures.py:")
    assert "Miller" in caplog.text


def test_the_place_is_the_innermost_frame_of_our_own_code():
    from fedapp.seeds import derive_seed

    failure = to_failure(caught(lambda: derive_seed(0, "\ud800")), "north", 1)

    assert "UnicodeEncodeError at fedapp/seeds.py:" in failure.message


def test_running_out_of_gpu_memory_says_what_to_lower():
    failure = to_failure(torch.OutOfMemoryError("CUDA out of memory. 3 GiB"), "north", 1)

    assert failure.kind == "TrainingError"
    assert "train.batch-size" in failure.message


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 80.0 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate "
                     "memory: you tried to allocate 42949672960 bytes. Error code 12"),
    ],
)  # fmt: skip
def test_running_out_of_memory_says_what_to_lower(error):
    failure = to_failure(error, "north", 1)

    assert failure.kind == "TrainingError"
    assert failure.message.startswith("site north, round 1: this process was given no more memory;")
    assert "train.batch-size" in failure.message
