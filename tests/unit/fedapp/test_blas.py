"""Merges compute with one thread, whatever the machine offers, and leave the setting as it was."""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_info

from fedapp.blas import single_thread
from server_app.training_round import merge_usable


def blas_threads() -> set[int]:
    assert np.linalg.norm(np.ones((2, 2))) == 2  # its library is loaded
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_one_thread_for_a_while() -> None:
    before = blas_threads()

    with single_thread():
        assert blas_threads() == {1}

    assert blas_threads() == before


def test_a_merge_has_one_thread() -> None:
    seen = []

    class Strategy:
        def aggregate(self, round: int, updates: list[object]) -> str:
            seen.append(blas_threads())
            return "merged"

    assert merge_usable(Strategy(), 1, {"a": "update"}, {}, 1) == "merged"  # type: ignore[arg-type]
    assert seen == [{1}]
