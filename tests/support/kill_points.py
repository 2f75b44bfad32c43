"""Named points of the round loop at which a run can be struck, hit exactly and never by chance.

Shared by the tests that raise an exception there, in one process, and by those that SIGKILL a whole
run (`killer_app`). The product knows nothing of it: its functions are wrapped from outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.exchange import Action
from fedapp.gossip.post import Post
from fedapp.results import RunFolder
from server_app import checkpoint as checkpoint_module
from server_app import rounds as rounds_module
from server_app import training_round

Strike = Callable[[], Any]


@dataclass(frozen=True)
class Arming:
    """Where a point is set: the round, what happens there, and how a function is replaced."""

    round: int
    strike: Strike
    replace: Callable[[Any, str, Any], None] = setattr

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function by what ``make`` makes of it."""
        self.replace(owner, name, make(getattr(owner, name)))


def before_send(arming: Arming) -> None:
    """The round's messages are made, none is sent."""

    def make(collect: Any) -> Any:
        def struck(grid: Any, instructions: Iterable[Any], *args: Any) -> Any:
            if _asks(instructions, arming.round):
                arming.strike()
            return collect(grid, instructions, *args)

        return struck

    arming.wrap(training_round, "collect", make)


def while_collecting(arming: Arming) -> None:
    """One site's update is there, the others' are not."""

    class OneByOne:
        """A grid that hands over the replies to one message alone, then strikes."""

        def __init__(self, grid: Any) -> None:
            self._grid, self._first = grid, ""

        def push_messages(self, messages: Iterable[Any]) -> Any:
            return self._grid.push_messages(messages)

        def pull_messages(self, message_ids: Sequence[str]) -> Any:
            self._first = self._first or message_ids[0]
            if self._first not in message_ids:
                arming.strike()
            return self._grid.pull_messages([self._first])

    def make(collect: Any) -> Any:
        def struck(grid: Any, instructions: Iterable[Any], *args: Any) -> Any:
            asks = _asks(instructions, arming.round)
            return collect(OneByOne(grid) if asks else grid, instructions, *args)

        return struck

    arming.wrap(training_round, "collect", make)


def after_validation(arming: Arming) -> None:
    """Every update is there and valid, nothing is merged."""

    def make(merge_usable: Any) -> Any:
        def struck(strategy: Any, round: int, *args: Any) -> Any:
            return (
                arming.strike() if round == arming.round else merge_usable(strategy, round, *args)
            )

        return struck

    arming.wrap(training_round, "merge_usable", make)


def in_the_metrics(arming: Arming) -> None:
    """Half of the round's rows, the last of them cut, are in ``metrics.jsonl``."""

    def make(append: Any) -> Any:
        def struck(folder: RunFolder, rows: Iterable[Any]) -> None:
            before = folder.metrics_size
            rows = list(rows)
            append(folder, rows)
            if rows[0]["round"] == arming.round:
                after = folder.metrics_size
                with folder.metrics_file.open("r+b") as stream:
                    stream.truncate((before + after) // 2)
                    os.fsync(stream.fileno())
                arming.strike()

        return struck

    arming.wrap(RunFolder, "append_metrics", make)


def before_checkpoint(arming: Arming) -> None:
    """The round is merged and its metrics are written, its checkpoint is not begun."""

    def make(write: Any) -> Any:
        def struck(folder: Path, checkpoint: Any, *args: Any) -> Any:
            if checkpoint.round == arming.round:
                arming.strike()
            return write(folder, checkpoint, *args)

        return struck

    arming.wrap(rounds_module, "write_checkpoint", make)


def during_checkpoint(arming: Arming) -> None:
    """Half of the numbers of the round's checkpoint are on disk, in its temporary folder."""

    def make(write: Any) -> Any:
        def struck(path: Path, pieces: Sequence[Any]) -> Any:
            entry = write(path, pieces)
            if f".round-{arming.round:06d}." in path.parent.name:
                with path.open("r+b") as stream:
                    stream.truncate(entry["bytes"] // 2)
                    os.fsync(stream.fileno())
                arming.strike()
            return entry

        return struck

    arming.wrap(checkpoint_module, "_write", make)


def before_pruning(arming: Arming) -> None:
    """The round's checkpoint is whole, the older ones that it replaces are still there."""

    def make(prune: Any) -> Any:
        def struck(folder: Path, newest: int, *args: Any) -> Any:
            if newest == arming.round:
                arming.strike()
            return prune(folder, newest, *args)

        return struck

    arming.wrap(checkpoint_module, "_prune", make)


def between_rounds(arming: Arming) -> None:
    """The round is over, the next (or, after the last, the adapter) is not begun."""

    def make(one_round: Any) -> Any:
        def struck(loop: Any, round: int, *args: Any) -> Any:
            one_round(loop, round, *args)
            if round == arming.round:
                arming.strike()

        return struck

    arming.wrap(rounds_module.RoundLoop, "_round", make)


def before_the_final_test(arming: Arming) -> None:
    """The adapter is written and the baseline measured, whatever the round."""
    arming.replace(rounds_module.RoundLoop, "_final_test", lambda *args: arming.strike())


def before_the_summary(arming: Arming) -> None:
    """Everything is measured, and nothing told, whatever the round."""
    arming.replace(rounds_module, "write_results", lambda *args: arming.strike())


def while_resuming(arming: Arming) -> None:
    """Of a resumed run: the checkpoint is loaded and what came after it cut, whatever the round."""

    def make(truncate: Any) -> Any:
        def struck(folder: RunFolder, size: int) -> Any:
            truncate(folder, size)
            arming.strike()

        return struck

    arming.wrap(RunFolder, "truncate_metrics", make)


def before_exchange(arming: Arming) -> None:
    """Every site has trained and published, no node has heard of it."""

    def make(exchange: Any) -> Any:
        def struck(post: Post, round: int, *args: Any) -> Any:
            return arming.strike() if round == arming.round else exchange(post, round, *args)

        return struck

    arming.wrap(Post, "exchange", make)


def before_mixing(arming: Arming) -> None:
    """Every site's mailbox holds its neighbours' models, nobody has mixed them."""

    def make(exchange: Any) -> Any:
        def struck(post: Post, round: int, *args: Any) -> Any:
            carried = exchange(post, round, *args)
            return arming.strike() if round == arming.round else carried

        return struck

    arming.wrap(Post, "exchange", make)


def _asks(instructions: Iterable[Any], round: int) -> bool:
    return any(i.action is Action.TRAIN and i.round == round for i in instructions)


# The checkpoint of the round itself exists only at the points of the second group.
BEFORE_ITS_CHECKPOINT: dict[str, Callable[[Arming], None]] = {
    "before send": before_send,
    "while collecting": while_collecting,
    "after validation": after_validation,
    "in the metrics": in_the_metrics,
    "before checkpoint": before_checkpoint,
    "during checkpoint": during_checkpoint,
}
AFTER_ITS_CHECKPOINT: dict[str, Callable[[Arming], None]] = {
    "before pruning": before_pruning,
    "between rounds": between_rounds,
}
IN_A_ROUND = {**BEFORE_ITS_CHECKPOINT, **AFTER_ITS_CHECKPOINT}
POINTS = {
    **IN_A_ROUND,
    "before the final test": before_the_final_test,
    "before the summary": before_the_summary,
    "while resuming": while_resuming,
}
BETWEEN_PEERS: dict[str, Callable[[Arming], None]] = {
    "before the exchange": before_exchange,
    "before mixing": before_mixing,
}
"""Of rounds in which sites exchange their models without a coordinator."""
