"""How a simulation shares this machine: number of nodes, CPUs and GPUs for each."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fedapp.config import RunConfig
from fedapp.errors import DeviceError

_MOST_NODES = 64
_MOST_CPUS = 8  # small models gain nothing from more threads


@dataclass(frozen=True)
class Simulation:
    """What Flower's simulation is asked for.

    Attributes
    ----------
    nodes : int
        Simulated nodes; sites are dealt over them, so it need not equal the number of sites. Ray's
        workers take the sites' messages from one queue, whichever node they are for: as long as
        there is a message for every worker, fewer nodes than sites cost nothing.
    cpus : int
        CPUs, hence threads, per node that works.
    gpus : float
        GPUs per node that works; 0 hides them all.
    """

    nodes: int
    cpus: int
    gpus: float

    def options(self) -> str:
        """Return the text for ``flwr run --federation-config``."""
        return (
            f"num-supernodes={self.nodes} client-resources-num-cpus={self.cpus} "
            f"client-resources-num-gpus={self.gpus}"
        )


def plan(config: RunConfig, cpus: int, gpus: int) -> Simulation:
    """Share ``cpus`` and ``gpus`` between the simulated nodes.

    One node has a whole GPU to itself: two clients of unknown size on one GPU could exhaust its
    memory, and one process keeps one resident base model for all clients.

    How many natural sites there are is only known to whoever reads the data, so for them
    ``data.sites`` is a hint that only matters for speed: 20 hospitals on 4 nodes keep both workers
    of a machine with 2 CPUs busy. The hint is worth changing where a worker should have other
    CPUs than a share of one node in ``data.sites``.

    Raises
    ------
    DeviceError
        If ``train.device`` asks for a GPU and there is none, or for another than the first: Ray
        shows every client one GPU, which is the first there.
    """
    wanted = config.train.device
    if wanted.startswith("cuda") and gpus == 0:
        raise DeviceError(
            f"train.device is '{wanted}' but no NVIDIA GPU is visible on this machine; "
            "set train.device to 'cpu' or 'auto', or check the driver with nvidia-smi"
        )
    if number := re.fullmatch(r"cuda:0*([1-9]\d*)", wanted):
        raise DeviceError(
            f"train.device is '{wanted}', but in a simulation every site is shown one GPU, as "
            "cuda:0; set train.device to cuda, and choose the GPU with the environment variable "
            f"CUDA_VISIBLE_DEVICES={number.group(1)}"
        )
    nodes = min(config.data.sites, _MOST_NODES)
    share = max(1, min(cpus // min(nodes, cpus), _MOST_CPUS))
    threads = min(config.train.threads, cpus) or share
    return Simulation(nodes, threads, 0.0 if wanted == "cpu" or gpus == 0 else 1.0)


def count_cpus() -> int:
    """Return the CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_gpus() -> int:
    """Return the NVIDIA GPUs that CUDA may use here, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _installed_gpus()
    # CUDA takes the list up to its first invalid entry.
    entries = itertools.takewhile(lambda entry: entry not in {"", "-1"}, visible.split(","))
    return min(sum(1 for _ in entries), _installed_gpus())


def _installed_gpus() -> int:
    devices = [p for p in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return len(devices)
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return len(devices)
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines()) or len(devices)
