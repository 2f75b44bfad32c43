"""One run of a consortium, from its beginning to its end: ``job.py [SETTINGS ...]``.

Runs in the container `flwr` of docker-compose.yml. SETTINGS are as `flwr run --run-config` takes
them; a `--default` counts where they say nothing. Exit code 0 if and only if the run completed:
`flwr run --stream` alone says 0 for a failed one too. A SuperLink that is away for less than two
minutes does not end it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

APP, CONNECTION = "/app", "fedapp"
RUNS = "output-dir='/runs'"  # where docker-compose.yml has the executor leave run folders
COMPLETED = "finished:completed"
PATIENCE = 120.0  # seconds without an answer of the SuperLink
ANSWER = 60.0  # seconds for one answer of it; beginning a run packs the app first
STEP = 2.0


def main(arguments: Sequence[str]) -> int:
    """Start the run, show its log, return its exit code."""
    parser = argparse.ArgumentParser(description="Start a run and wait for its end.")
    parser.add_argument("settings", nargs="*", metavar="SETTINGS", help="KEY=VALUE ...")
    parser.add_argument("--default", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args(arguments)
    settings = joined(given.settings, [RUNS, *given.default])
    print(f"Settings beside the app's own: {settings}", flush=True)
    began = ask("run", APP, CONNECTION, "--run-config", settings)
    if "run-id" not in began:
        why = began.get("error", "no number came; `flwr list` tells whether it began")
        print(f"error: the run was not accepted: {why}", file=sys.stderr)
        return 1
    run = str(began["run-id"])
    print(f"Run {run} has begun; it goes on if this ends.", flush=True)
    subprocess.run(["flwr", "log", run, CONNECTION], check=False)
    # The log ends with the run, or with its connection.
    ended = end_of(run)
    print(ended["status"], ended["status-details"], flush=True)
    return 0 if ended["status"] == COMPLETED else 1


def joined(settings: Sequence[str], defaults: Sequence[str]) -> str:
    """Return one list of settings: of two, Flower takes whole sections from the second alone."""
    given = " ".join(settings)
    ours = [each for each in defaults if f"{each.partition('=')[0]}=" not in given]
    return " ".join([*ours, given]).strip()


def end_of(run: str) -> dict[str, Any]:
    """Wait for the end of a run and return Flower's row of it."""
    last = time.monotonic()
    while True:
        found = ask("list", CONNECTION, "--run-id", run)
        if rows := found.get("runs"):
            last = time.monotonic()
            if rows[0]["status"].startswith("finished"):
                return dict(rows[0])
        elif time.monotonic() - last > PATIENCE:
            why = found.get("error", "no such run")
            sys.exit(f"error: the SuperLink does not tell about run {run}: {why}")
        time.sleep(STEP)


def ask(*arguments: str) -> dict[str, Any]:
    """Return the answer of a ``flwr`` command, or its words under ``error``."""
    command = ["flwr", *arguments, "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {ANSWER:g} s; `flwr list` tells what has begun"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        answer = {}
    if done.returncode == 0 and answer.get("success"):
        return answer
    words = answer.get("error-message") or done.stderr.strip() or done.stdout.strip()
    return {"error": words}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
