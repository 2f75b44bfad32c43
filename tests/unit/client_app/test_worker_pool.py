"""A worker that died leaves the pool, with what is known of why; one whose app failed stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import BasicActorPool
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError

from client_app.worker_pool import WorkerDied, WorkerPool, install
from fedapp import kernel

LOW = "Task was killed due to the node running low on memory.\nMemory on the node was ..."


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WorkerPool:
    """A pool of two workers, without Ray; one of them is at work on "future"."""
    monkeypatch.setattr(kernel, "_COUNTERS", (tmp_path / "none", tmp_path / "events"))
    monkeypatch.setattr(ray, "kill", lambda worker: None)
    made = WorkerPool.__new__(WorkerPool)
    made.pool, made.num_actors = ["idle"], 2  # type: ignore[list-item]
    made._future_to_actor = {"future": "busy"}  # type: ignore[dict-item]
    made.create_actor_fn = lambda: "fresh"  # type: ignore[assignment, return-value]
    made._kernel_kills = 0
    return made


def answers(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def get(future: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)


@pytest.mark.parametrize(
    ("error", "kernel", "cause"),
    [
        (ActorDiedError(), 0, "it was killed, or it crashed"),
        (ActorUnavailableError("unavailable", None), 0, "it was killed, or it crashed"),
        (ActorDiedError(), 3, "the kernel killed a process of this machine for lack of memory"),
        (OutOfMemoryError(LOW), 0, "this machine was about to run out of memory"),
        (ActorUnavailableError(LOW, None), 0, "this machine was about to run out of memory"),
    ],
)
def test_a_dead_worker_is_replaced(
    pool: WorkerPool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Exception,
    kernel: int,
    cause: str,
) -> None:
    answers(monkeypatch, error)
    (tmp_path / "events").write_text(f"low 0\noom 5\noom_kill {kernel}\n")

    with pytest.raises(WorkerDied, match=cause) as caught:
        pool.fetch_result_and_return_actor_to_pool("future")
    pool.add_actor_back_to_pool("future")  # as Flower does after any exception

    assert "\n" not in str(caught.value)
    assert (pool.pool, pool.num_actors) == (["idle", "fresh"], 2)


def test_a_worker_whose_app_raised_goes_on(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, RayTaskError("run", "traceback", ValueError("odd")))

    with pytest.raises(RayTaskError):
        pool.fetch_result_and_return_actor_to_pool("future")
    pool.add_actor_back_to_pool("future")

    assert (pool.pool, pool.num_actors) == (["idle", "busy"], 2)


def test_a_result_returns_the_worker(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", lambda future: ("0", "message", "context"))

    assert pool.fetch_result_and_return_actor_to_pool("future") == ("message", "context")
    assert pool.pool == ["idle", "busy"]


def test_an_earlier_kill_is_not_blamed_again(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers(monkeypatch, ActorDiedError())
    (tmp_path / "events").write_text("oom_kill 3\n")
    causes = []
    for future in ("future", "later"):
        pool._future_to_actor[future] = "busy"  # type: ignore[assignment]
        with pytest.raises(WorkerDied) as caught:
            pool.fetch_result_and_return_actor_to_pool(future)
        causes.append(str(caught.value))

    assert ["kernel" in cause for cause in causes] == [True, False]


def test_flowers_simulation_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raybackend, "BasicActorPool", BasicActorPool)

    install()

    assert raybackend.BasicActorPool is WorkerPool
