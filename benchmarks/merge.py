"""The exact merge of low-rank products against the dense SVD of their sum; FedAvg's memory.

Usage:
    .venv/bin/python benchmarks/merge.py
    .venv/bin/python benchmarks/merge.py --clients 10 --repetitions 9 --output /tmp/merge.json

Each case runs in a fresh process with one BLAS thread, so that it can share the machine. Every
repetition runs the merge (several times, it is short) and the dense way once; the result is the
median of the ratios within repetitions, by wall and by processor time (which other processes on the
machine disturb less). Results: benchmarks/results/merge.json.

Two kinds of clients: "drifted" ones share an adapter that each has moved by 30 % (what a round
looks like), "independent" ones share nothing, so that the singular values of the sum hardly decay
(the worst case for many clients). The dense way sums B A in fp32 and calls numpy's SVD, in fp32;
errors are against the same in fp64.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import Packed, pack
from fedapp.lowrank import Pair, weighted_sum_svd
from server_app.merges import average_factors
from server_app.updates import Update

RESULT = Path(__file__).resolve().parent / "results" / "merge.json"
M, N, RANK = 1024, 1024, 8
KINDS = ("drifted", "independent")
LIMITS = {"ratio_at_10_clients": 50, "relative_error": 1e-5, "peak_share_of_matrix": 1.0}
LAYERS = 12  # pairs of the adapter that FedAvg averages
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> None:
    """Run every case in a process of its own and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, nargs="+", default=[2, 10, 50, 500])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--case", nargs=2, metavar=("KIND", "K"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        kind, clients = args.case[0], int(args.case[1])
        measured = (
            fedavg(clients, args.seed)
            if kind == "fedavg"
            else merge(kind, clients, args.repetitions, args.seed)
        )
        print(json.dumps(measured))
        return
    load_before = os.getloadavg()
    results = {
        kind: {str(clients): _child(kind, clients, args) for clients in args.clients}
        for kind in (*KINDS, "fedavg")
    }
    document = {
        "benchmark": "merge of K LoRA products by weighted_sum_svd / dense SVD of their sum",
        "config": {"m": M, "n": N, "rank": RANK, "clients": args.clients, "layers_fedavg": LAYERS},
        "repetitions": args.repetitions,
        "seed": args.seed,
        "limits": LIMITS,
        "results": results,
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": 1,
            "blas": _blas(),
            # Set on some machines: it restricts OpenBLAS's kernels, for both ways alike.
            "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
            "load_average_before": load_before,
            "load_average_after": os.getloadavg(),
        },
    }
    args.output.parent.mkdir(exist_ok=True)
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {args.output}")


def merge(kind: str, clients: int, repetitions: int, seed: int) -> dict[str, Any]:
    """Compare the merge of one layer with the dense way."""
    pairs = _pairs(kind, clients, seed)
    weights = np.random.default_rng(seed).dirichlet(np.full(clients, 5.0)).tolist()
    weighted_sum_svd([(np.eye(9, 2), np.eye(2, 9))], [1.0], 2)  # loads LAPACK
    growth = _resident_growth(lambda: weighted_sum_svd(pairs, weights, RANK))
    inner = max(1, 40 // clients)
    runs = [
        (
            _seconds(lambda: weighted_sum_svd(pairs, weights, RANK), inner),
            _seconds(lambda: dense(pairs, weights, np.float32), 1),
        )
        for _ in range(repetitions + 1)
    ][1:]
    walls = [theirs[0] / ours[0] for ours, theirs in runs]
    matrix = M * N * 4
    peak = _peak(lambda: weighted_sum_svd(pairs, weights, RANK))
    return {
        "seconds_median": statistics.median(ours[0] for ours, _ in runs),
        "dense_seconds_median": statistics.median(theirs[0] for _, theirs in runs),
        "ratio_wall_median": statistics.median(walls),
        "ratio_wall_all": walls,
        "ratio_processor_median": statistics.median(b[1] / a[1] for a, b in runs),
        **_errors(pairs, weights),
        "peak_bytes": peak,
        "peak_share_of_fp32_matrix": peak / matrix,
        "resident_growth_share_of_fp32_matrix": growth / matrix,
        "dense_peak_share_of_fp32_matrix": _peak(lambda: dense(pairs, weights, np.float32))
        / matrix,
    }


def fedavg(clients: int, seed: int) -> dict[str, Any]:
    """Peak memory of averaging the factors of compressed updates, decoded one at a time."""
    pair = _pairs("independent", 1, seed)[0]
    adapter = Adapter({f"layer.{k:02}": LoraPair(*pair, 2.0) for k in range(LAYERS)})
    packed = pack(adapter, "bf16")

    def update(number: int) -> Update:  # a payload of its own, as from the wire
        return Update(f"site{number:03}", 1.0 + number, Packed(packed.array.copy(), packed.layout))

    updates = [update(number) for number in range(clients)]
    peak = _peak(lambda: average_factors(updates))
    return {
        "peak_bytes": peak,
        "peak_share_of_fp32_adapter": peak / (4 * adapter.size),
        "milliseconds_per_client": _seconds(lambda: average_factors(updates), 1)[0]
        / clients
        * 1000,
    }


def dense(
    pairs: list[Pair], weights: list[float], dtype: type[np.floating[Any]]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Form the m x n sum and decompose all of it."""
    total = np.zeros((M, N), dtype)
    for (b_mr, a_rn), weight in zip(pairs, weights, strict=True):
        total += (b_mr.astype(dtype) * dtype(weight)) @ a_rn.astype(dtype)
    u, s, vt = np.linalg.svd(total, full_matrices=False)
    return u[:, :RANK], s[:RANK], vt[:RANK]


def _errors(pairs: list[Pair], weights: list[float]) -> dict[str, float]:
    u, s, vt = dense(pairs, weights, np.float64)
    best = (u * s) @ vt
    errors = {}
    for prefix, (u1, s1, vt1) in (
        ("", weighted_sum_svd(pairs, weights, RANK)),
        ("dense_", dense(pairs, weights, np.float32)),
    ):
        product = (u1.astype(np.float64) * s1) @ vt1
        errors[f"{prefix}relative_error"] = float(
            np.linalg.norm(product - best) / np.linalg.norm(best)
        )
        errors[f"{prefix}singular_value_error"] = float(np.abs(s1 / s - 1).max())
    return errors


def _pairs(kind: str, clients: int, seed: int) -> list[Pair]:
    rng = np.random.default_rng(seed)

    def factors() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return (
            rng.standard_normal((M, RANK), np.float32),
            rng.standard_normal((RANK, N), np.float32),
        )

    if kind == "independent":
        return [factors() for _ in range(clients)]
    b0, a0 = factors()
    moves = (factors() for _ in range(clients))
    return [(b0 + np.float32(0.3) * b, a0 + np.float32(0.3) * a) for b, a in moves]


def _seconds(function: Callable[[], object], times: int) -> tuple[float, float]:
    """Wall and processor seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        function()
    return (time.perf_counter() - wall) / times, (time.process_time() - cpu) / times


def _peak(function: Callable[[], object]) -> int:
    """Peak bytes that numpy allocates meanwhile; LAPACK's own workspace is not seen."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _resident_growth(function: Callable[[], object]) -> int:
    """Growth of the process's peak resident memory in bytes, LAPACK's workspace included."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    function()
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def _child(kind: str, clients: int, args: argparse.Namespace) -> Any:
    command = [sys.executable, __file__, "--case", kind, str(clients)]
    command += ["--repetitions", str(args.repetitions), "--seed", str(args.seed)]
    output = subprocess.run(
        command, env={**os.environ, **dict.fromkeys(THREADS, "1")}, check=True, capture_output=True
    ).stdout
    result = json.loads(output)
    short = {key: round(value, 9) for key, value in result.items() if not isinstance(value, list)}
    print(f"{kind}, {clients} clients: {json.dumps(short)}", flush=True)
    return result


def _blas() -> str:
    dependencies: dict[str, Any] = np.show_config(mode="dicts")["Build Dependencies"]  # type: ignore
    return f"{dependencies['blas']['name']} {dependencies['blas']['version']}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
