"""Time of one local training step against a plain minimal PEFT loop on the same batches.

Usage:
    .venv/bin/python -m benchmarks.step_time
    .venv/bin/python -m benchmarks.step_time --repetitions 9 --steps 6 --device cuda

Every repetition runs the plain loop and each method once, in an order that rotates, and gives one
ratio per method; the result is their median, for wall time and, on a CPU, for processor time, which
other processes on the machine disturb less. Both loops start from the same weights and must end
with the same mean loss, else the comparison is refused. pflalign takes plain SGD steps and is held
against a plain loop with SGD, which must end where fedavg with SGD does; it trains a second round,
with an offset and moments of a first.
Results: benchmarks/results/step_time.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

from benchmarks.held_memory import tensor_bytes
from client_app.batching import batches
from client_app.data import load_sites
from client_app.models import load_resident
from client_app.runtime import compute_settings
from client_app.training import Report, train
from fedapp.config import RunConfig
from fedapp.registry import METHODS, load_half
from fedapp.seeds import derive_seed
from fedapp.state import State

RESULT = Path(__file__).resolve().parent / "results" / "step_time.json"
LIMITS = {"fedavg": 1.03, "subspace-reg": 1.05, "pflalign": 1.08}
PLAIN = {"plain": "adamw", "plain-sgd": "sgd"}
AGAINST = {"pflalign": "plain-sgd"}  # the others: "plain"


class Bench:
    """One site's training items, our resident model, and a plain PEFT model of the same weights."""

    def __init__(self, config: RunConfig, steps: int) -> None:
        self.config, self.steps = config, steps
        self.data = next(iter(load_sites(config).values()))
        self.resident = load_resident(config, self.data.label_map)
        self.items = self.resident.task.prepare(self.data.splits["train"])
        self.initial = self.resident.parameters.initial(config.seed)
        base = AutoModelForSequenceClassification.from_pretrained(
            self.resident.source.path, num_labels=len(self.data.label_map)
        )
        ours = self.resident.peft_config
        lora = LoraConfig(
            r=config.lora.rank,
            lora_alpha=config.lora.alpha,
            target_modules=list(config.lora.targets),
            modules_to_save=ours["modules_to_save"],
            task_type="SEQ_CLS",
        )
        self.plain_model = get_peft_model(base, lora).to(self.resident.device)
        order = batches(self.items, config.train.batch_size, derive_seed(config.seed, "epoch", 0))[
            :steps
        ]
        self.tensors = [
            self.resident.task.collate([self.items[i] for i in batch]) for batch in order
        ]
        self.kept: dict[str, State] = {}  # of a first round, by method

    def ours(
        self, method: str, report: Report | None = None, config: RunConfig | None = None
    ) -> float:
        """Run our loop; returns its mean loss."""
        parameters = self.resident.parameters
        rule = load_half(METHODS[method].client)(config or self.config, parameters)
        received = {"adapter": self.initial}
        if method in self.kept:
            rule.load_state_dict(self.kept[method])
            parameters.load(rule.start(received))
        rule.begin(received, {}, self.steps)
        loss = train(
            self.resident,
            self.items,
            rule,
            self.config,
            seed=self.config.seed,
            first_step=0,
            total_steps=self.steps,
            epochs=1,
            report=report,
        ).loss
        if rule.keeps_state and method not in self.kept:
            rule.finish(received)
            self.kept[method] = rule.state_dict()
        return loss

    def buffers(self, method: str) -> float:
        """Return the most that tensors hold between two steps, beyond the model, in adapters."""
        self.reset()
        held = [tensor_bytes()]
        self.ours(method, lambda *_: held.append(tensor_bytes()))
        return (max(held) - held[0]) / (4 * self.initial.size)

    def plain(self, optimizer: str) -> float:
        """Run what a tutorial would do, on batches padded already, with torch's optimiser as is."""
        model, device = self.plain_model, self.resident.device
        torch.manual_seed(derive_seed(self.config.seed, "dropout"))  # the same dropout as ours
        model.train()
        trained = [p for p in model.parameters() if p.requires_grad]
        train_settings = self.config.train
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer]
        stepper = kind(
            trained, lr=train_settings.learning_rate, weight_decay=train_settings.weight_decay
        )
        total = torch.zeros((), device=device)
        for batch in self.tensors:
            loss = model(**{key: value.to(device) for key, value in batch.items()}).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, train_settings.clip_norm)
            stepper.step()
            stepper.zero_grad()
            total += loss.detach()
        return float(total) / self.steps

    def reset(self) -> None:
        """Give both models the initial adapter."""
        self.resident.parameters.load(self.initial)
        self.plain_model.load_state_dict(self.resident.model.state_dict())

    def measure(self, run: Callable[[], float]) -> tuple[float, float, float]:
        """Return wall seconds, processor seconds and mean loss of a run from the start."""
        self.reset()
        self._wait()
        wall, cpu = time.perf_counter(), time.process_time()
        loss = run()
        self._wait()
        return time.perf_counter() - wall, time.process_time() - cpu, loss

    def _wait(self) -> None:
        if self.resident.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--model", default="embedded:minilm")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = RunConfig.from_flat(
        {
            "seed": args.seed,
            "model.source": args.model,
            "train.device": args.device,
            "train.threads": args.threads,
            "train.max-steps": args.steps,
        }
    )
    bench = Bench(config, args.steps)
    load_before = os.getloadavg()
    with compute_settings(config.train, bench.resident.device):
        runs = repeat(bench, args.repetitions)
        buffers = {method: bench.buffers(method) for method in LIMITS}
    result = {
        "benchmark": "seconds of a training step / plain PEFT loop, same batches",
        "results": {method: summarise(runs, method, args.steps) for method in (*PLAIN, *LIMITS)},
        "adapters_held": buffers,
        "adapter_numbers": bench.initial.size,
        "repetitions": args.repetitions,
        "steps_per_repetition": args.steps,
        "seed": args.seed,
        "config": config.to_flat(),
        "site": bench.data.site,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
        },
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": args.threads,
            "device": str(bench.resident.device),
            "load_average_before": load_before,
            "load_average_after": os.getloadavg(),
        },
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("results", "adapters_held")}, indent=1))
    print(f"written to {RESULT}")


def repeat(bench: Bench, repetitions: int) -> dict[str, list[tuple[float, float]]]:
    """Return wall and processor seconds of every repetition, after one that is thrown away."""
    variants: dict[str, Callable[[], float]] = {
        name: lambda kind=kind: bench.plain(kind) for name, kind in PLAIN.items()
    }
    for method in LIMITS:
        variants[method] = lambda method=method: bench.ours(method)
    sgd = bench.config.with_changes({"train.optimizer": "sgd", "train.momentum": 0.0})
    _check_same(bench, "plain-sgd", variants["plain-sgd"], lambda: bench.ours("fedavg", config=sgd))
    names = list(variants)
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for repetition in range(repetitions + 1):
        losses: dict[str, float] = {}
        for k in range(len(names)):
            name = names[(repetition + k) % len(names)]
            wall, cpu, losses[name] = bench.measure(variants[name])
            if repetition:
                runs[name].append((wall, cpu))
        _refuse_unlike("plain", losses["plain"], losses["fedavg"])
        print(f"repetition {repetition} of {repetitions}", flush=True)
    return runs


def _check_same(
    bench: Bench, name: str, plain: Callable[[], float], ours: Callable[[], float]
) -> None:
    """Refuse a plain loop that does not do what ours does without a method's own work."""
    _refuse_unlike(name, bench.measure(plain)[2], bench.measure(ours)[2])


def _refuse_unlike(name: str, plain: float, ours: float) -> None:
    if abs(plain - ours) > 1e-4:
        raise SystemExit(f"the loops do not do the same work: mean loss of {name} {plain}, {ours}")


def summarise(
    runs: dict[str, list[tuple[float, float]]], method: str, steps: int
) -> dict[str, Any]:
    """Return the medians of one method."""
    walls, cpus = zip(*runs[method], strict=True)
    summary: dict[str, Any] = {"step_seconds_median": statistics.median(walls) / steps}
    if method in PLAIN:
        return summary
    against = AGAINST.get(method, "plain")
    plain_walls, plain_cpus = zip(*runs[against], strict=True)
    ratios = [a / b for a, b in zip(walls, plain_walls, strict=True)]
    summary |= {
        "limit": LIMITS[method],
        "against": against,
        "ratio_wall_median": statistics.median(ratios),
        "ratio_wall_all": ratios,
        "ratio_processor_median": statistics.median(
            a / b for a, b in zip(cpus, plain_cpus, strict=True)
        ),
    }
    return summary


def processor() -> str:
    """Name of the CPU, or of its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
