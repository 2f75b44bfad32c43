"""How long a checkpoint of a 45 MB adapter takes, and how long it keeps the round loop waiting.

Usage:
    .venv/bin/python benchmarks/checkpoint.py
    .venv/bin/python benchmarks/checkpoint.py --repetitions 15 --folder /data --output /tmp/c.json

Every repetition does, in turn and on the same disk, each ending on the disk (fsync included):

* "one after another": safetensors' own ``save``, SHA-256, write, fsync, rename: what a plain writer
  does, and the parts of it;
* "write_checkpoint": the product's writer, which writes every tensor from where it is and hashes
  meanwhile, with manifest, state and the removal of the oldest checkpoint;
* "blocked": the round loop's own call at the end of a round, from the merged model to the next
  round's first step.

Times are medians over the repetitions; the ratios are taken within each. "Peak" is what Python and
numpy allocate while a checkpoint is written. Results: benchmarks/results/checkpoint.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

import fedapp
from benchmarks.machine import describe
from fedapp.adapter import Adapter, LoraPair
from fedapp.config import RunConfig
from fedapp.exchange import SiteDescription
from fedapp.results import RunFolder
from fedapp.state import split_state
from server_app.app import build_strategy
from server_app.checkpoint import Checkpoint, write_checkpoint
from server_app.roster import Member, Roster
from server_app.rounds import RoundLoop

RESULT = Path(__file__).resolve().parent / "results" / "checkpoint.json"
LAYERS, MODULES, WIDTH, RANK = 28, 7, 1792, 16  # 11.2 million numbers in 392 tensors: 45.0 MB
LIMITS = {"blocked_to_one_after_another": 1.0, "peak_share_of_adapter": 0.1}
SITES = ("North", "South", "West")


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="On the disk to measure; default: temporary.")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    load_before = os.getloadavg()
    root = Path(tempfile.mkdtemp(dir=args.folder, prefix="checkpoint-"))
    try:
        results = measure(root, args.repetitions)
        disk = _disk(root)
    finally:
        shutil.rmtree(root)
    document = {
        "benchmark": "checkpoint of a 45 MB adapter: time, parts, and wait of the round loop",
        "config": {"layers": LAYERS, "modules": MODULES, "width": WIDTH, "rank": RANK},
        "repetitions": args.repetitions,
        "limits": LIMITS,
        "results": results,
        "met": {
            "blocked_to_one_after_another": results["blocked_to_one_after_another_median"]
            <= LIMITS["blocked_to_one_after_another"],
            "peak_share_of_adapter": results["peak_share_of_adapter"]
            <= LIMITS["peak_share_of_adapter"],
        },
        "disk": disk,
        **describe(load_before, "numpy", "safetensors"),
    }
    args.output.parent.mkdir(exist_ok=True)
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    for key, value in results.items():
        if not isinstance(value, list):
            print(f"{key}: {value}")
    print(f"written to {args.output}")


def measure(root: Path, repetitions: int) -> dict[str, Any]:
    """Write checkpoints in ``root`` in all three ways, ``repetitions`` times after a first one."""
    loop, roster = _loop(root)
    state = loop.strategy.state_dict()
    checkpoint = Checkpoint(
        round=0, run="0" * 32, settings=loop.config.to_flat(), roster=roster.digests(),
        sampler={}, strategy=state, totals=dict(loop.totals), metrics_size=0,
    )  # fmt: skip
    parts: dict[str, list[float]] = {}
    plain, product, blocked = [], [], []
    for number in range(repetitions + 1):
        of_plain = _one_after_another(root / "plain" / f"{number}", state)
        written = _numbered(checkpoint, number)
        product.append(_seconds(lambda: write_checkpoint(root / "product", written, keep=2)))  # noqa: B023
        blocked.append(_seconds(lambda: loop._checkpoint(number, roster)))  # noqa: B023
        plain.append(sum(of_plain.values()))
        for name, seconds in of_plain.items():
            parts.setdefault(name, []).append(seconds)
    del plain[0], product[0], blocked[0]  # the first one opens files and loads code
    tracemalloc.start()
    write_checkpoint(root / "product", _numbered(checkpoint, repetitions + 1), keep=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    folder = root / "product" / f"round-{repetitions + 1:06d}"
    size = 4 * loop.strategy.adapter.size
    return {
        "adapter_bytes": size,
        "checkpoint_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "write_checkpoint_seconds_median": statistics.median(product),
        "blocked_seconds_median": statistics.median(blocked),
        "one_after_another_seconds_median": statistics.median(plain),
        **{f"part_{k}_seconds_median": statistics.median(v[1:]) for k, v in parts.items()},
        "blocked_to_one_after_another_median": _ratio(blocked, plain),
        "blocked_to_write_checkpoint_median": _ratio(blocked, product),
        "megabytes_per_second": size / 1e6 / statistics.median(product),
        "peak_bytes": peak,
        "peak_share_of_adapter": peak / size,
        "write_checkpoint_seconds": product,
        "blocked_seconds": blocked,
        "one_after_another_seconds": plain,
    }


def _one_after_another(folder: Path, state: dict[str, Any]) -> dict[str, float]:
    """Write the tensors as a plain writer would; seconds of every part."""
    os.sync()
    temporary = folder.with_suffix(".tmp")
    temporary.mkdir(parents=True)
    marks = [time.perf_counter()]
    data = save(split_state(state)[0])
    marks.append(time.perf_counter())
    hashlib.sha256(data).hexdigest()
    marks.append(time.perf_counter())
    with (temporary / "state.safetensors").open("wb") as stream:
        stream.write(data)
        stream.flush()
        marks.append(time.perf_counter())
        os.fsync(stream.fileno())
    marks.append(time.perf_counter())
    temporary.rename(folder)
    handle = os.open(folder.parent, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    marks.append(time.perf_counter())
    shutil.rmtree(folder)
    names = ("serialise", "hash", "write", "fsync", "rename")
    return {name: marks[i + 1] - marks[i] for i, name in enumerate(names)}


def _seconds(function: Callable[[], object]) -> float:
    os.sync()  # nobody pays for what another has written
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _numbered(checkpoint: Checkpoint, number: int) -> Checkpoint:
    return Checkpoint(**{**vars(checkpoint), "round": number})


def _loop(root: Path) -> tuple[RoundLoop, Roster]:
    """Return a round loop whose model has 45 MB, as it is after a merge."""
    config = RunConfig.from_flat(
        {"method": "fedavg", "name": "run", "output-dir": str(root), "lora.rank": RANK}
    )
    strategy = build_strategy(config)
    strategy.adapter = _adapter()
    layout, initial = strategy.adapter.layout_digest(), strategy.adapter.digest()
    roster = Roster(
        {
            site: Member(number, _description(config, site, layout, initial), 0.0)
            for number, site in enumerate(SITES)
        }
    )
    folder = RunFolder.create(config)
    return RoundLoop(grid=None, strategy=strategy, folder=folder), roster  # type: ignore[arg-type]


def _adapter() -> Adapter:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    return Adapter(
        {
            f"layer.{layer}.module.{module}": LoraPair(
                normal(WIDTH, RANK), normal(RANK, WIDTH), 1.0
            )
            for layer in range(LAYERS)
            for module in range(MODULES)
        }
    )


def _description(config: RunConfig, site: str, layout: str, initial: str) -> SiteDescription:
    return SiteDescription(
        site=site, package_version=fedapp.__version__, base_model=config.model.source,
        base_model_digest="0" * 64, layout_digest=layout, initial_digest=initial,
        rank=RANK, alpha=config.lora.alpha, targets=list(config.lora.targets), heads=[],
        dtype="fp32", task=config.model.task, label_map=["no", "yes"],
        examples={"train": 60, "validation": 20, "test": 20}, device="cpu", threads=1,
        torch_version="2.13.0", clock=0.0, peft_config={}, notes=[],
    )  # fmt: skip


def _disk(folder: Path) -> str:
    """Kind of the file system that holds ``folder``, where the system tells."""
    try:
        rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    holders = [(len(row[1]), row[2]) for row in rows if folder.resolve().is_relative_to(row[1])]
    return max(holders)[1] if holders else "unknown"


if __name__ == "__main__":
    main()
