"""A child process whose command line the kernel shows."""

from __future__ import annotations

import subprocess
import time

from fedapp.cli.process import Process


def begun(child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Return ``child`` once it can be looked at: on a busy machine that is after `Popen` returns.

    What `Popen` waits for, the closing of its pipe, comes before the new program's command line
    and environment are in ``/proc``.
    """
    deadline = time.monotonic() + 60
    while not Process.of(child.pid).command():
        assert time.monotonic() < deadline, f"process {child.pid} does not begin"
        time.sleep(0.005)
    return child
