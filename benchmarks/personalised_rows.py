"""What the benchmark of personalised methods runs: methods, their grids, models, settings.

Not a benchmark itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import instruction_clients as clients

LOCAL = "local-only"
GRID = 6
"""Points at which every method is tried with the tiny decoder."""
Settings = dict[str, Any]

SIX = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
THREE = (2e-3, 8e-3, 3.2e-2)
# Plain steps times factors far below 1: rates of another order, see docs/methods.md. At 3 the
# validation loss turns after a round or two, at 10 it does not fall; at 0.1 it falls slowly.
PLAIN = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
FEW = {"fedavg": (5e-4, 2e-3, 8e-3), "pflalign": (0.25, 1.0, 4.0)}
"""Rates for a model whose runs are dear, for steps of AdamW and for pFLAlign's plain ones."""


@dataclass(frozen=True)
class Row:
    """A method and the grid on which it is tried: rates times values of its own main knob."""

    settings: Settings
    rates: tuple[float, ...] = SIX
    knob: str = ""
    values: tuple[float, ...] = ()
    passes: int = 1
    """Forward and backward passes for each step of a plain method."""

    @property
    def alike(self) -> str:
        """The row whose rate this one takes over where a grid of its own is too dear."""
        return "pflalign" if self.rates is PLAIN else "fedavg"

    def points(
        self, rates: tuple[float, ...] | None = None, value: float | None = None
    ) -> Iterator[tuple[str, Settings]]:
        """Yield the name and the settings of every point; rates or the knob's value may be set."""
        for rate in rates or self.rates:
            at_rate = {**self.settings, "train.learning-rate": rate}
            for knob in self.values if value is None else (value,):
                yield f"lr {rate:g}, {self.knob} {knob:g}", {**at_rate, self.knob: knob}
            if not self.values:
                yield f"lr {rate:g}", at_rate


def _algorithm(name: str, knob: str = "", values: tuple[float, ...] = (), passes: int = 1) -> Row:
    settings = {"method": "fedavg", "federation.algorithm": name}
    return Row(settings, THREE if values else SIX, knob, values, passes)


def _pflalign(**own: Any) -> Row:
    settings = {"method": "pflalign", **{f"pflalign.{k}": v for k, v in own.items()}}
    if own.get("base") == "adamw":
        return Row(settings, SIX)
    # The algorithm has neither; plain steps at such rates would shrink the model itself.
    return Row({**settings, "train.weight-decay": 0.0, "train.clip-norm": 0.0}, PLAIN)


ROWS = {
    "fedavg": _algorithm("fedavg"),
    "pflalign": _pflalign(),
    "ditto": Row({"method": "ditto"}, THREE, "ditto.lambda", (0.1, 1.0), passes=2),
    "fedsa-lora": Row({"method": "fedsa-lora"}),
    "fedprox": _algorithm("fedprox", "fedprox.mu", (0.01, 0.1)),
    "fedyogi": _algorithm("fedyogi", "fedyogi.server-lr", (1e-2, 1e-1)),
    "fedavgm": _algorithm("fedavgm", "fedavgm.momentum", (0.5, 0.9)),
    "scaffold": _algorithm("scaffold"),
    "fedsam": _algorithm("fedsam", "fedsam.rho", (0.01, 0.1), passes=2),
    "pflalign-adamw": _pflalign(base="adamw"),
}
"""In the order in which they are run."""
READINGS = {
    "pflalign-literal": _pflalign(**{"bias-correction": False}),
    "pflalign-direct": _pflalign(factor="direct"),
    "pflalign-scalar": _pflalign(gate="scalar"),
    "pflalign-ungated": _pflalign(gate="none"),
    "pflalign-increment": _pflalign(share="update"),
    "pflalign-no-offset": _pflalign(personalisation=False),
    "pflalign-offset-alone": _pflalign(**{"local-update": False, "base": "adamw"}),
}
"""Other readings of pFLAlign and its halves, run by name alone."""
ALL_ROWS = {**ROWS, **READINGS}

_COMMON: Settings = {
    "model.task": "causal-lm",
    "data.test-fraction": 0.25,
    "data.validation-fraction": 0.2,
    "train.eval-batch-size": 32,
}
MODELS: dict[str, Settings] = {
    "tiny": {
        **_COMMON,
        "data.max-examples": 120,
        "train.batch-size": 8,
        "model.source": "embedded:tiny-decoder",
        "model.max-length": 160,
        "lora.targets": "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
        "federation.rounds": 10,
        "train.local-epochs": 2,
        "train.generate-tokens": 24,
    },
    "smollm2": {
        **_COMMON,
        "data.max-examples": 32,
        "train.batch-size": 4,
        "model.source": "embedded:smollm2",
        "model.max-length": 96,
        "lora.targets": "q_proj,v_proj",
        "federation.rounds": 2,
        "train.local-epochs": 2,
        "train.max-steps": 6,  # a step takes some 2 s of a core, an evaluation 5
        "train.generate-tokens": 16,
    },
}
PROBE = {"tiny": 64, "smollm2": 0}
"""Records of a site at which the gradients' signal to noise ratio is measured; 0: it is not."""
SETTINGS = {"tiny": ("tasks", "hospitals"), "smollm2": ("four",)}
"""Settings that are run unless others are named, the one of high heterogeneity first."""
SECONDS = {
    "tiny": {"tasks": (22.0, 52.0), "hospitals": (13.0, 28.0)},
    "smollm2": {"four": (110.0, 225.0)},
}
"""Seconds of a core for a run at a point and one with a seed: guesses until there are runs."""


def sources(data: Path | None) -> dict[str, str]:
    """Write the clients' files; a name of a setting to the path of its records."""
    found = {
        "tasks": clients.written("tasks", partial(clients.tasks, None)),
        "hospitals": clients.written("hospitals", clients.hospitals),
    }
    if data is None:
        return found
    institutions = partial(clients.medquad, data, clients.INSTITUTIONS)
    return {
        **found,
        "four": clients.written("four", partial(clients.four, data)),
        "tasks+medquad": clients.written("tasks+medquad", partial(clients.tasks, data)),
        "institutions": clients.written("institutions", institutions),
    }
