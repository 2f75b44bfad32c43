"""A simulation's workers: one that dies is named and replaced.

Flower returns a dead worker to its pool, where the next message takes it at once: within seconds
every later message, of any site, has failed with Ray's own message of a dead actor.
"""

from __future__ import annotations

from typing import Any

import ray
from flwr.app import Context, Message
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import BasicActorPool
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from fedapp.kernel import kernel_kills, why_gone

_LOW_MEMORY = "low on memory"  # Ray's words where its memory monitor ends a worker


class WorkerDied(Exception):
    """A worker process ended in the middle of its work; the text says what is known of why."""


class WorkerPool(BasicActorPool):
    """Flower's pool, but a worker that died leaves it and a fresh one takes its place.

    A message that is given to the fresh one waits until it has started.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kernel_kills = kernel_kills()

    def fetch_result_and_return_actor_to_pool(self, future: Any) -> tuple[Message, Context]:
        """Return what the worker made of its message.

        Raises
        ------
        WorkerDied
            If the worker is no more.
        """
        try:
            return super().fetch_result_and_return_actor_to_pool(future)
        except RayTaskError:
            raise  # the app raised it; its worker lives
        except RayError as error:
            self._replace(future)
            raise WorkerDied(self._cause(error)) from error

    def add_actor_back_to_pool(self, future: Any) -> None:
        """Return the worker to the pool, unless it has been replaced."""
        if future in self._future_to_actor:
            super().add_actor_back_to_pool(future)

    def _replace(self, future: Any) -> None:
        worker: Any = self._future_to_actor.pop(future)
        ray.kill(worker)  # it may be only out of reach
        self.num_actors -= 1
        self.add_actors_to_pool(1)

    def _cause(self, error: RayError) -> str:
        kills, self._kernel_kills = self._kernel_kills, kernel_kills()
        if isinstance(error, OutOfMemoryError) or _LOW_MEMORY in str(error):
            return "Ray ended it because this machine was about to run out of memory"
        return why_gone(kills)


def install() -> None:
    """Let the simulation of this process use `WorkerPool`, which has no setting for it."""
    raybackend.BasicActorPool = WorkerPool  # type: ignore[attr-defined]
