"""What a command concludes when the process of its run has gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedapp.cli.session import Session


class Child:
    """`flwr run`, which ends at the ninth look or when it is killed."""

    looks = 0
    killed = False

    def poll(self) -> int | None:
        self.looks += 1
        return 0 if self.killed or self.looks > 8 else None

    def kill(self) -> None:
        self.killed = True

    def wait(self) -> None:
        pass


@pytest.mark.parametrize(
    ("states", "lost"),
    [
        (["running"], True),
        (["finished:completed"], False),
        # Flower does not answer at first; "" alone says nothing of the run.
        (["", "", "finished:completed"], False),
        (["", "running"], True),
        ([""], False),
    ],
)
def test_a_run_is_lost_only_if_flower_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, states: list[str], lost: bool
) -> None:
    monkeypatch.setattr("fedapp.cli.session.time", SimpleNamespace(sleep=lambda _: None))
    child, said = Child(), iter(states)
    session: Any = Session.__new__(Session)
    session._child, session._lost = child, False
    session._daemon = SimpleNamespace(alive=True)
    session._process = SimpleNamespace(has_gone=lambda: True, slow=99)
    session._state = lambda: next(said, states[-1])

    session._watch(child)

    assert (session._lost, child.killed) == (lost, lost)
