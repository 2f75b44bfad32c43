"""The consortium of docker-compose.yml, deployed: image sizes, start, bytes on the wire.

Usage:
    .venv/bin/python -m benchmarks.deployed
    .venv/bin/python -m benchmarks.deployed --rounds 2 --max-steps 5 --output /tmp/x.json

Needs a Docker engine with both images (deploy/images.sh), docker-compose, and what deploy/setup.sh
makes; starts a project of its own from docker-compose.yml, does the main job as deploy/run.sh does,
and takes the project down again.

Bytes on the wire are those of the network interface of a hospital's SuperNode, both ways, TLS and
HTTP included, from the end of round 1 to the end of the last one: whole rounds, with the polls that
fall between. They are compared with the bytes of the adapters that were sent. What a SuperNode
costs that waits is measured before the run. Neither that nor what a message has beside the adapter
grows with the adapter: the ratio falls with its size, and rises with the length of a round.

Minutes. Results: benchmarks/results/deployed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.deployment import metrics
from benchmarks.machine import describe

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "deployed.json"
PROJECT, RUN = "fedapp-bench", "deployed"
HOSPITALS = {"cleveland": "Cleveland", "hungary": "Hungary", "long-beach": "VA Long Beach"}
IMAGES = ("fedapp-core:0.1.0", "fedapp-site:0.1.0")
IDLE = 30.0  # seconds
LONGEST = 1800.0
COMPOSE = {**os.environ, "COMPOSE_PROJECT_NAME": PROJECT}


def call(*command: str) -> str:
    """Run a command at the root in the project's environment; return what it printed."""
    done = subprocess.run(command, cwd=ROOT, env=COMPOSE, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def container(service: str) -> str:
    """Return the id of a service's container."""
    labels = {"project": PROJECT, "service": service, "oneoff": "False"}
    wanted = [f"--filter=label=com.docker.compose.{key}={value}" for key, value in labels.items()]
    return call("docker", "ps", "--quiet", *wanted).strip()


def sizes() -> dict[str, int]:
    """Return the bytes of each image."""
    return {
        name: json.loads(call("docker", "image", "inspect", name))[0]["Size"] for name in IMAGES
    }


def traffic() -> dict[str, int]:
    """Return what each hospital's SuperNode has received and sent so far, in bytes."""
    found = {}
    for service, site in HOSPITALS.items():
        table = call("docker", "exec", container(f"supernode-{service}"), "cat", "/proc/net/dev")
        row = next(line for line in table.splitlines() if line.strip().startswith("eth0:"))
        numbers = row.partition(":")[2].split()
        found[site] = int(numbers[0]) + int(numbers[8])
    return found


def online() -> int:
    """Return how many SuperNodes the SuperLink has let in."""
    command = ["docker", "logs", container("superlink")]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return (said.stdout + said.stderr).count("Activated node_id")


def wait(done: Any, running: subprocess.Popen[bytes] | None = None) -> float:
    """Wait until ``done()``; return the time."""
    end = time.monotonic() + LONGEST
    while not done():
        if time.monotonic() > end or (running is not None and running.poll() not in (None, 0)):
            raise SystemExit("waited in vain; see the containers' logs")
        time.sleep(0.1)
    return time.monotonic()


def measure(rounds: int, steps: int, rank: int) -> dict[str, Any]:
    """Start the project, do the run, return times and bytes."""
    name = f"{RUN}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = ROOT / "deploy" / "demo" / "runs" / name
    call("deploy/setup.sh")
    began = time.monotonic()
    call("docker-compose", "up", "-d")
    up = time.monotonic()
    settings = f"train.threads=1 federation.rounds={rounds} train.max-steps={steps}"
    settings += f" federation.local-only=false lora.rank={rank}"
    joined = wait(lambda: online() >= len(HOSPITALS))
    before = traffic()
    time.sleep(IDLE)
    idle = {site: count - before[site] for site, count in traffic().items()}
    asked = time.monotonic()
    with (ROOT / "deploy" / "demo" / f"{name}.log").open("wb") as log:
        run = subprocess.Popen(
            ["deploy/run.sh", f"name='{name}' {settings}"],
            cwd=ROOT,
            env=COMPOSE,
            stdout=log,
            stderr=log,
        )
        at, seen = {}, {}
        for number in range(1, rounds + 1):
            at[number] = wait(
                lambda number=number: any(
                    row["round"] == number and row["site"] is None for row in metrics(folder)
                ),
                run,
            )
            seen[number] = traffic()
        code = run.wait()
    if code:
        raise SystemExit(f"the run failed; see {name}.log")
    sent = [
        row
        for row in metrics(folder)
        if row["phase"] == "personal" and row["split"] == "validation" and row["round"] > 1
    ]
    wire = {}
    for site in HOSPITALS.values():
        adapters = sum(r["bytes_up"] + r["bytes_down"] for r in sent if r["site"] == site)
        carried = seen[rounds][site] - seen[1][site]
        polls = idle[site] / IDLE * (at[rounds] - at[1])
        wire[site] = {
            "bytes": carried,
            "adapter_bytes": adapters,
            "ratio": carried / adapters,
            "idle_bytes_per_second": idle[site] / IDLE,
            "other_bytes_per_round": (carried - polls - adapters) / (rounds - 1),
        }
    return {
        "settings": settings,
        "rounds": rounds,
        "seconds": {
            "up": up - began,
            "up_to_all_supernodes_online": joined - began,
            "run_asked_to_first_round_complete": at[1] - asked,
            "up_to_first_round_complete": (joined - began) + (at[1] - asked),
            "round_median": median(at[n] - at[n - 1] for n in range(2, rounds + 1)),
        },
        "wire": wire,
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=0, help="of a round; 0: the main job's")
    parser.add_argument("--rank", type=int, default=8, help="of the adapter")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    if shutil.which("docker") is None or shutil.which("docker-compose") is None:
        print("nothing measured: docker or docker-compose is not here")
        return
    load_before = os.getloadavg()
    try:
        found = measure(args.rounds, args.max_steps, args.rank)
    finally:
        call("docker-compose", "down", "--volumes", "--timeout", "10")
    machine = describe(load_before, "flwr", "torch", "grpcio", "numpy")
    loads = [*machine["machine"]["load_average_before"], *machine["machine"]["load_average_after"]]
    document = {
        "benchmark": "the consortium of docker-compose.yml: images, start, bytes on the wire",
        "image_bytes": sizes(),
        "busy": max(loads) > 2 * (os.cpu_count() or 1),
        **found,
        **machine,
    }
    args.output.parent.mkdir(exist_ok=True)
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
