"""What all tests share: one thread a process, since two processes of tests share the machine.

The tests' models are tiny. With a second thread, every step of one would wait, spinning, for a core
that the other process has.
"""

from __future__ import annotations

import sys


def pytest_collection_finish() -> None:
    """Whatever imports torch has been imported by now."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
