"""A Flower Grid that calls the client app in this process: no Ray, no start-up, one core a run.

The round loop, the messages and the client app are the product's own; only the transport is
missing. With ``train.threads = 1`` a run gives the same bits as `fedapp run` with that setting
(``tests/integration/test_local_grid.py``), so experiments of many runs can use every core for one
run each.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app as client_app
from fedapp.config import RunConfig, Scalar
from fedapp.results import RunFolder
from server_app.app import build_strategy
from server_app.rounds import RoundLoop


class LocalGrid(Grid):
    """One node that hosts every site; a message is answered when it is pushed."""

    NODE = 1

    def __init__(self) -> None:
        # What a Flower process knows of itself, and puts in every message.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self._context = Context(1, self.NODE, {"partition-id": 0, "num-partitions": 1},
                                RecordDict(), {})  # fmt: skip
        self._replies: dict[str, Message] = {}
        self._count = 0

    def get_node_ids(self) -> Iterable[int]:
        """Return the one node."""
        return [self.NODE]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the client app answer every message."""
        ids = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = f"m{self._count}"
            ids.append(message.metadata.message_id)
            self._replies[ids[-1]] = client_app(message, self._context)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return what is answered."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        """Is not used: the round loop has a deadline of its own."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Is deprecated in Flower."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        """There is no run to set."""

    @property
    def run(self) -> Any:
        """There is no run."""
        return None


def run_here(
    settings: Mapping[str, Scalar],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a federation in this process and return its summary and its rows of metrics.

    Parameters
    ----------
    settings : mapping
        Dotted keys, on top of the defaults. ``train.threads`` is 1 unless it says otherwise.
    """
    with tempfile.TemporaryDirectory() as place:
        config = RunConfig.from_flat(
            {"train.threads": 1, **settings, "name": "here", "output-dir": place}
        )
        folder = RunFolder.create(config)
        summary = RoundLoop(LocalGrid(), build_strategy(config), folder, simulated=True).run()
        lines = Path(folder.metrics_file).read_text().splitlines()
    return summary, [json.loads(line) for line in lines]
