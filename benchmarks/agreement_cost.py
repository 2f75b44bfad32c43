"""What it costs a site to judge one neighbour, against the forward pass that it needs anyway.

Usage:
    python -m benchmarks.agreement_cost --data writer_digits.npz  # two minutes, quiet
    python -m benchmarks.agreement_cost --pairs 5  # a trial without these; nothing is written

Four models on their validation records (`PLACES`, and the digits of benchmarks/presets/writers.toml
in their own size), one thread. Of each, in turns in one process: a
*forward pass*, that is the neighbour's model loaded into the resident one and its outputs on the
records, collated before; an *agreement*: the same, with the last layer's inputs kept, the kernel
and its agreement with the own one, for which the aim is 1.05 forward passes; and a *judgement*:
with the agreement of predictions, the distances, the gates, and its part of the mix as well. The
results are medians over the turns of ratios of processor times.
What a round needs once, the own view and the null models, is told apart, in forward passes.

Besides the kernel of 256 rows of 2,048 features and its comparison; the aim is 20 ms.

Results: benchmarks/results/agreement_cost.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.machine import describe
from fedapp.adapter import Adapter
from fedapp.blas import single_thread
from fedapp.config import RunConfig
from fedapp.ntk import alignment, kernel
from fedapp.peer_rules.agreement import Yardstick
from fedapp.peer_rules.base import Context, Neighbour
from fedapp.peer_rules.lightyear import Lightyear

RESULTS = Path(__file__).resolve().parent / "results" / "agreement_cost.json"
PRESET = Path(__file__).resolve().parent / "presets" / "writers.toml"
ROWS, FEATURES = 256, 2048
DIGITS = "four convolutions, digits of 28 x 28"
CONVOLUTIONS = {
    "model.task": "image-classification",
    "model.source": "embedded:conv4",
    "model.trainable": "all",
}
PLACES: dict[str, dict[str, Any]] = {
    "MiniLM with LoRA, heart notes": {"data.source": "embedded:heart"},
    "four convolutions, digits of 8 x 8": {
        **CONVOLUTIONS,
        "data.source": "embedded:digits",
        "data.partition": "iid",
    },
    "U-Net, slices of a brain": {
        "model.task": "image-segmentation",
        "model.source": "embedded:tiny-unet",
        "model.trainable": "all",
        "data.source": "embedded:mni",
    },
}


def writers(path: str) -> dict[str, Any]:
    """Return the settings of the digits by their writers."""
    told = tomllib.loads(PRESET.read_text())["data"]
    data = {f"data.{key}": value for key, value in {**told, "source": path}.items()}
    return {**CONVOLUTIONS, **data}


def milliseconds(work: Callable[[], Any]) -> float:
    """Return the processor time of a call."""
    started = time.process_time()
    work()
    return 1e3 * (time.process_time() - started)


def measure_kernel(repeats: int) -> dict[str, float]:
    """Return the median time of one peer's kernel and its agreement with the own one, in ms."""
    rng = np.random.default_rng(0)
    own, peer = (rng.standard_normal((ROWS, FEATURES)).astype(np.float32) for _ in range(2))
    mine = kernel(own)
    with single_thread():
        times = [milliseconds(lambda: alignment(mine, kernel(peer))) for _ in range(repeats + 1)]
    return {"rows": ROWS, "features": FEATURES, "ms": median(times[1:])}


def measure_place(settings: dict[str, Any], pairs: int) -> dict[str, Any]:
    """Return the costs of a judgement with one model."""
    from client_app.data import load_sites
    from client_app.models import load_resident
    from client_app.runtime import compute_settings
    from client_app.views import Viewer

    config = RunConfig.from_flat(
        {"method": "lightyear", "train.threads": 1, "train.device": "cpu", **settings}
    )
    site, data = next(iter(load_sites(config).items()))
    resident = load_resident(config, data.label_map)
    items = resident.task.prepare(data.splits["validation"])
    viewer = Viewer(resident, items, config, site)
    own = resident.parameters.initial(0).map(_moved(0))
    peer = own.map(_moved(1))

    def judge(others: list[Adapter]) -> None:
        looks = Viewer(resident, items, config, site)  # one a round, as a site has
        context = Context(config, site, 1, looks, looks.loss)
        neighbours = [Neighbour(f"n{number}", other) for number, other in enumerate(others)]
        Lightyear(config).mix(own, neighbours, context)

    def agree() -> None:
        yardstick.score(viewer(peer))

    def forward() -> None:
        with viewer.evaluating(peer):
            for batch in viewer.batches:
                resident.task.output(resident.model, batch)

    with compute_settings(config.train, resident.device), single_thread():
        yardstick = Yardstick(viewer(own), config.lightyear.effective().agreement)
        forward(), agree(), judge([peer])  # what happens once
        passes, agreed, judged, once = [], [], [], []
        for _ in range(pairs):
            work = [forward, agree, agree, forward, agree, forward, forward, agree]
            turns = [(each, milliseconds(each)) for each in work]
            passes.append(median(ms for each, ms in turns if each is forward))
            agreed.append(median(ms for each, ms in turns if each is agree))
            one, five = milliseconds(lambda: judge([peer])), milliseconds(lambda: judge([peer] * 5))
            judged.append((five - one) / 4)
            once.append(one - judged[-1])
    return {
        "records": min(len(items), config.p2p.records),
        "forward_ms": median(passes),
        "agreement_ms": median(agreed),
        "agreement_ratio": _ratio(agreed, passes),
        "judgement_ms": median(judged),
        "judgement_ratio": _ratio(judged, passes),
        "once_a_round_in_forward_passes": median(once) / median(passes),
    }


def _ratio(times: list[float], passes: list[float]) -> float:
    return median(each / one for each, one in zip(times, passes, strict=True))


def _moved(seed: int) -> Callable[[str, Any], Any]:
    """A small step away from a model, another for every array."""
    rng = np.random.default_rng(seed)
    return lambda name, x: (x + 0.01 * rng.standard_normal(x.shape)).astype(np.float32)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=0, help="turns; 0: 9, and write the results")
    parser.add_argument("--data", help="digits of 28 x 28 by their writers; needed to write")
    options = parser.parse_args()
    if not (options.pairs or options.data):
        parser.error("the results have the digits of --data as well; for a trial give --pairs")
    pairs, load = options.pairs or 9, os.getloadavg()
    found: dict[str, Any] = {"kernel": measure_kernel(3 * pairs)}
    print(f"kernel: {found['kernel']['ms']:.1f} ms")
    places = PLACES if options.data is None else {**PLACES, DIGITS: writers(options.data)}
    for name, settings in places.items():
        found[name] = measure_place(settings, pairs)
        told = found[name]
        print(
            f"{name}: {told['records']} records, forward {told['forward_ms']:.1f} ms; agreement "
            f"{told['agreement_ratio']:.3f}, judgement {told['judgement_ratio']:.3f} of it; once a "
            f"round {told['once_a_round_in_forward_passes']:.1f} passes",
            flush=True,
        )
    if not options.pairs:
        document = {**describe(load, "torch", "numpy"), "pairs": pairs, "results": found}
        RESULTS.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
