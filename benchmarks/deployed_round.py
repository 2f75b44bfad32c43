"""A round at one hospital: a warm site service beside one process per message, on the same work.

Usage:
    .venv/bin/python -m benchmarks.deployed_round
    .venv/bin/python -m benchmarks.deployed_round --tiny --seconds 1 --output /tmp/x.json

Open-source Flower starts a fresh ClientApp process for every message. Both sides here do that, the
way `flwr-clientapp` does: a new interpreter imports the app, reads a message, calls the app and
ends. In one the site is in that process, which loads torch, the base model and the records every
time; in the other it is `fedapp site serve`, warm. The training has as many steps as take 1, 10
and 60 s in the warm service; both must send the same bits. What Flower's own polling adds (3 s of a
SuperNode, 0.1 s of its executor as `fedapp supernode` starts it, 0.2 s of our loop) is the same for
both and not in the times.

The floor of an exchange is its time when training is one step, and where it goes: the interpreter
and its imports, the call without the work, the work.

About ten minutes on two cores with nothing else to do. Results: benchmarks/results/
deployed_round.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import describe

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "deployed_round.json"
SITE = "Cleveland"
SETTINGS: dict[str, Any] = {
    "method": "subspace-reg",
    "model.source": "embedded:minilm",
    "data.labels": "no heart disease,heart disease",
    "train.threads": 2,
    "train.local-epochs": 1000,
    "federation.local-only": False,
}
TINY = {"model.source": "embedded:tiny-encoder", "model.max-length": 16, "train.threads": 1}
RUN = "0" * 32

# What Flower's process does with a message, timed from inside.
CLIENT = """
import json, sys, time
began = time.time()
from flwr.app import Context, Message, Metadata, RecordDict
from client_app.app import app
from fedapp.wire import MESSAGE_TYPES, content_to_reply, instruction_to_content
imported = time.time()
from benchmarks.deployed_round import instruction
job = json.load(sys.stdin)
asked = instruction(job["action"], job["settings"], job["round"], job["model"])
metadata = Metadata(run_id=1, message_id="m", src_node_id=1, dst_node_id=2, reply_to_message_id="",
    group_id="", created_at=0.0, ttl=3600.0, message_type=MESSAGE_TYPES[asked.action])
message = Message(metadata=metadata, content=instruction_to_content(asked))
called = time.time()
content = app(message, Context(1, 2, job["node"], RecordDict(), {})).content
answered = time.time()
reply = content_to_reply(content)
assert reply.failure is None, reply.failure
packed = reply.payloads.get("adapter")
if job["save"]:
    from pathlib import Path
    Path(job["save"]).write_bytes(packed.array.tobytes())
    Path(job["save"] + ".layout").write_text(packed.layout.to_json())
print(json.dumps({"imports": imported - began, "call": answered - called,
    "work": reply.numbers.get("seconds", 0.0), "steps": reply.numbers.get("steps", 0.0),
    "training": reply.numbers.get("training_seconds", 0.0),
    "bytes": packed.nbytes if packed else 0, "digest": packed.layout.digest if packed else ""}))
"""


def instruction(action: str, settings: dict[str, Any], round: int, model: str) -> Any:
    """Return an instruction; ``model`` is a file with the adapter, or empty."""
    import numpy as np

    from fedapp.codec import Layout, Packed
    from fedapp.config import RunConfig
    from fedapp.exchange import Action, Instruction

    payloads = {}
    if model:
        layout = Layout.from_json(Path(f"{model}.layout").read_text())
        payloads["adapter"] = Packed(np.fromfile(model, np.uint8), layout)
    config = RunConfig.from_flat(settings)
    return Instruction(Action(action), SITE, config, round, payloads=payloads, run=RUN)


def ask(
    action: str,
    settings: dict[str, Any],
    steps: int,
    round: int,
    node: dict[str, str],
    model: str = "",
    save: str = "",
) -> dict[str, Any]:
    """Send one message to a fresh process; return its times, the process's own among them."""
    job = {
        "action": action,
        "settings": {**settings, "train.max-steps": steps},
        "round": round,
        "node": node,
        "model": model,
        "save": save,
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        input=json.dumps(job), capture_output=True, text=True, check=False, cwd=HERE.parent,
    )  # fmt: skip
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(f"the client failed: {done.stderr[-2000:]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": seconds}


@contextmanager
def service(folder: Path) -> Iterator[dict[str, str]]:
    """Run `fedapp site serve`; yields the node configuration of its SuperNode."""
    from client_app.preflight.dry_run import running_service

    path = folder / "site.toml"
    path.write_text(
        f'name = "{SITE}"\nsocket = "s"\nstate = "state"\n[data]\nsource = "embedded:heart"\n'
        "[policy]\nmin-records = 0\n"
    )
    with running_service(path, folder / "s") as socket:
        yield {"site": SITE, "site-address": f"unix:{socket}"}


def measure(
    settings: dict[str, Any], seconds: list[float], repeats: int, folder: Path
) -> dict[str, Any]:
    """Return the times of both sides at every length of training."""
    model = str(folder / "model")
    with service(folder) as warm:
        stock = {"site": SITE, "state-folder": str(folder / "stock")}
        first = ask("initial", settings, 1, 0, warm, save=model)
        pace = ask("train", settings, 20, 1, warm, model)
        rate = pace["steps"] / pace["training"]
        print(f"first message {first['seconds']:.1f} s; {rate:.1f} steps a second", flush=True)
        rows, round = [], 1
        for length in [0.0, *seconds]:
            steps = max(1, round_half(length * rate))
            sides: dict[str, list[dict[str, Any]]] = {"warm": [], "stock": []}
            for _ in range(repeats):
                round += 1  # a new message each time: a repeated one would not be trained
                sides["warm"].append(ask("train", settings, steps, round, warm, model))
                sides["stock"].append(ask("train", settings, steps, round, stock, model))
                if sides["warm"][-1]["digest"] != sides["stock"][-1]["digest"]:
                    sys.exit("the two sides sent different bits")
            rows.append(summary(length, steps, sides))
            print(json.dumps(rows[-1]), flush=True)
    return {"first_message_seconds": first["seconds"], "steps_per_second": rate, "rows": rows}


def round_half(value: float) -> int:
    """Return the nearest whole number."""
    return int(value + 0.5)


def summary(length: float, steps: int, sides: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return medians, and where the warm side's time goes."""
    times = {side: median(each["seconds"] for each in found) for side, found in sides.items()}
    warm = sides["warm"]
    parts = {
        "interpreter_and_imports": median(each["seconds"] - each["call"] for each in warm),
        "call_without_work": median(each["call"] - each["work"] for each in warm),
        "work": median(each["work"] for each in warm),
    }
    return {
        "training_seconds": length,
        "steps": steps,
        "warm_seconds": times["warm"],
        "stock_seconds": times["stock"],
        "ratio": times["stock"] / times["warm"],
        "warm_goes_to": parts,
        "stock_work": median(each["work"] for each in sides["stock"]),
        "bytes_up": warm[0]["bytes"],
        "all": {side: [each["seconds"] for each in found] for side, found in sides.items()},
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0, 10.0, 60.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a tiny model: whether it works at all")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    load_before = os.getloadavg()
    settings = {**SETTINGS, **(TINY if args.tiny else {})}
    with tempfile.TemporaryDirectory(prefix="fedapp-") as name:
        found = measure(settings, args.seconds, args.repeats, Path(name))
    document = {
        "benchmark": "a hospital's message: warm site service against one process per message",
        "settings": settings,
        "repeats": args.repeats,
        **found,
        **describe(load_before, "flwr", "torch", "grpcio", "numpy"),
    }
    args.output.parent.mkdir(exist_ok=True)
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {args.output}")


if __name__ == "__main__":
    main()
