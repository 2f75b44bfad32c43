"""The process that executes a run: noticed when it goes, and what it leaves behind is ended.

Flower itself notices only after a minute without a heartbeat.
"""

from __future__ import annotations

import time

from fedapp.cli.daemon import Daemon, end_ray
from fedapp.cli.home import Home
from fedapp.cli.process import Process, end_all
from fedapp.kernel import kernel_kills, why_gone

_SETTLE = 2.0  # seconds in which a run that ends by itself is known to have ended
_FAMILY_INTERVAL = 5.0
_END_GRACE = 10.0


class RunProcess:
    """Watches the process that a daemon starts for a run.

    Parameters
    ----------
    home : Home
    daemon : Daemon
        The home's; it executes no other run.
    """

    def __init__(self, home: Home, daemon: Daemon) -> None:
        self._home, self._daemon = home, daemon
        self._process: Process | None = None
        self._family: set[Process] = set()
        self._looked = self._gone = float("-inf")
        self._kernel_kills = kernel_kills()
        self._slow = 0

    def has_gone(self) -> bool:
        """Whether it was there and has been gone for two seconds; to be called about once a second.

        That also holds for a run that has ended by itself.
        """
        now = time.monotonic()
        if self._process is not None and self._process.alive:
            if now - self._looked > _FAMILY_INTERVAL:  # for which every process is looked at
                self._looked = now
                self._family.update(self._process.descendants())
            return False
        runs = [run for run in self._daemon.runs() if "flwr-simulation" in run.command()]
        if runs:
            self._process, self._gone = runs[-1], float("-inf")
        elif self._process is not None and self._gone < 0:
            self._gone = now
        return 0 < self._gone < now - _SETTLE

    def expect_another(self) -> None:
        """Forget that it has gone: Flower starts a process again that was too slow to begin."""
        self._process, self._gone = None, float("-inf")
        self._slow += 1

    @property
    def slow(self) -> int:
        """How many processes of the run were too slow to begin."""
        return self._slow

    def why(self) -> str:
        """Say what is known of why it has gone."""
        if self._slow:
            return (
                "the run did not begin: Flower gives its process 30 s to start, and other programs "
                f"took the processors for longer, {self._slow + 1} times; run again when they are "
                "done"
            )
        return f"the process that executed the run has gone: {why_gone(self._kernel_kills)}"

    def end_family(self) -> None:
        """See that everything it had started ends too, also what nobody has seen start."""
        end_all(self._family, _END_GRACE)
        end_ray(self._home)
