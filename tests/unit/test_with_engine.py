"""`tests/deployment/with_engine.sh`, all that it calls replaced: its limit, exit codes, and end."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from interface import ROOT

TOOLS = ("docker-compose", "iptables", "debootstrap", "nginx", "busybox")
NO_ENGINE = '#!/bin/sh\ntest "$1" != info || test -e "$HERE/up"\n'
ENGINE = """#!/bin/sh
while [ $# -gt 0 ]; do
    if [ "$1" = --pidfile ]; then echo $$ > "$2"; fi
    shift
done
trap 'touch "$HERE/down"; exit 0' TERM
touch "$HERE/up"
while :; do sleep 0.1; done
"""
SLEEPS = """#!/usr/bin/env python3
import os, pathlib, time
try:
    time.sleep(60)
finally:
    pathlib.Path(os.environ["HERE"], "taken-down").touch()
"""


class Script:
    """The script in a project of its own, in which pytest is ``python``."""

    def __init__(self, root: Path, python: str, docker: str = "#!/bin/sh\n") -> None:
        self.root = root
        place = root / "tests" / "deployment"
        place.mkdir(parents=True)
        shutil.copy2(ROOT / "tests" / "deployment" / "with_engine.sh", place)
        for name in TOOLS:
            self._program(root / "bin" / name, "#!/bin/sh\n")
        self._program(root / "bin" / "docker", docker)
        self._program(root / "bin" / "dockerd", ENGINE)
        self._program(root / "bin" / "sudo", '#!/bin/sh\nexec "$@"\n')
        self._program(root / "deploy" / "images.sh", "#!/bin/sh\n")
        self._program(root / ".venv" / "bin" / "python", python)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own = {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "HERE": str(self.root)}
        return subprocess.run(
            [str(self.root / "tests" / "deployment" / "with_engine.sh"), *arguments],
            capture_output=True, text=True, timeout=30, env={**os.environ, **own, **environment},
        )  # fmt: skip

    def _program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)


def test_tests_that_take_too_long_are_ended_and_so_is_the_engine(tmp_path: Path) -> None:
    script = Script(tmp_path, SLEEPS, NO_ENGINE)
    began = time.monotonic()

    done = script.run(COMPOSE_TEST_LIMIT="1")

    assert done.returncode == 124
    assert done.stderr.splitlines()[-1] == (
        "error: the tests in containers took longer than 1 s (COMPOSE_TEST_LIMIT) and were ended"
    )
    assert time.monotonic() - began < 20
    assert (tmp_path / "taken-down").exists(), "the tests' own end was waited for"
    assert (tmp_path / "down").exists(), "the engine that it started was ended"


@pytest.mark.parametrize("code", [0, 1, 5, 137])
def test_the_exit_code_is_pytests(tmp_path: Path, code: int) -> None:
    script = Script(tmp_path, f'#!/bin/sh\necho "$@"\nexit {code}\n')

    done = script.run("-k", "some words")

    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.splitlines()[-1].endswith("tests/deployment -k some words")
    assert not (tmp_path / "down").exists(), "an engine that runs already is left alone"


@pytest.mark.parametrize("limit", ["", "0", "ten", "1.5", "-3"])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: str) -> None:
    done = Script(tmp_path, "#!/bin/sh\n").run(COMPOSE_TEST_LIMIT=limit)

    if limit == "":  # as if it were not set
        assert done.returncode == 0
    else:
        assert done.returncode == 2
        assert f"COMPOSE_TEST_LIMIT is '{limit}'" in done.stderr
