"""A SuperNode that would stay alive and offline ends instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedapp.provision import supernode

STAYS = """
import sys, threading, time, types
def flower_supernode():
    print(sys.argv, flush=True)
    threading.Thread(target=time.sleep, args=(60,)).start()
    {end}
module = types.ModuleType("flower_supernode")
module.flower_supernode = flower_supernode
for name in ("flwr", "flwr.supernode", "flwr.supernode.cli"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["flwr.supernode.cli.flower_supernode"] = module
sys.argv = ["supernode.py", "flower-supernode", "--superlink", "x:1"]
import runpy
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("pass", "its loop has ended"),
        ("threading.Thread(target=lambda: 1 / 0, name='pulse').start(); time.sleep(60)",
         "its thread pulse has ended"),
    ],
)  # fmt: skip
def test_it_ends_though_its_other_threads_go_on(end: str, words: str) -> None:
    code = STAYS.format(end=end, path=str(Path(supernode.__file__)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert done.returncode == 1
    assert done.stdout == "['flower-supernode', '--superlink', 'x:1']\n"
    assert f"error: the SuperNode is offline: {words}" in done.stderr


def test_a_thread_that_asks_to_end_is_no_fault() -> None:
    end = "t = threading.Thread(target=sys.exit); t.start(); t.join(); import os; os._exit(7)"
    code = STAYS.format(end=end, path=str(Path(supernode.__file__)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)

    assert done.returncode == 7
