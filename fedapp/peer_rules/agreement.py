"""One site's own model as a yardstick for others: any of LIGHTYEAR's scores, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from fedapp.errors import ConfigError
from fedapp.ntk import LARGEST_FULL_KERNEL, Kernel, KernelKind, alignment, kernel
from fedapp.outputs import MIN_ROWS, Profile, probabilities, profile, profile_agreement
from fedapp.peer_rules.base import View

Agreement = Literal["logits", "softmax-trace", "softmax-full", "v1"]
_KINDS: dict[str, KernelKind] = {
    "logits": "logits",
    "softmax-trace": "softmax_trace",
    "softmax-full": "softmax_full",
}


class Yardstick:
    """Scores models against the own one, on the rows of its view.

    Parameters
    ----------
    own : View
    agreement : {"logits", "softmax-trace", "softmax-full", "v1"}
        A kernel of `fedapp.ntk`, or `fedapp.outputs.profile_agreement`, which needs labels.

    Raises
    ------
    ConfigError
        If ``softmax-full`` would need too large a kernel.
    """

    def __init__(self, own: View, agreement: Agreement) -> None:
        self._score = _by_profile(own) if agreement == "v1" else _by_kernel(own, agreement)

    def score(self, view: View) -> float:
        """Return the agreement, in [0, 1]."""
        return self._score(view)

    def null_level(self, nulls: Iterable[View]) -> float:
        """Return the mean score of models known to be useless, see `fedapp.ntk.calibrated`."""
        return float(np.mean([self._score(view) for view in nulls]))


def check_size(view: View, agreement: Agreement) -> None:
    """Refuse a kernel that would need too much memory for the rows and outputs of a view.

    Raises
    ------
    ConfigError
    """
    rows, outputs = view.logits_nc.shape
    size = rows * max(outputs, 2)  # one output is the logit of a sigmoid
    if agreement == "softmax-full" and size > LARGEST_FULL_KERNEL:
        raise ConfigError(
            f"lightyear.agreement softmax-full needs rows x outputs of at most "
            f"{LARGEST_FULL_KERNEL}, got {size}; lower p2p.records or p2p.rows, or choose "
            "softmax-trace"
        )


def _by_kernel(own: View, agreement: Agreement) -> Callable[[View], float]:
    check_size(own, agreement)
    kind = _KINDS[agreement]

    def of(view: View) -> Kernel:
        return kernel(view.features_nd, view.logits_nc, kind=kind, bias=view.has_bias)

    mine = of(own)
    return lambda view: alignment(mine, of(view))


def _by_profile(own: View) -> Callable[[View], float]:
    def of(view: View) -> Profile:
        p_nc = probabilities(view.logits_nc)
        if p_nc.shape[1] == 1:
            p_nc = np.concatenate([1 - p_nc, p_nc], axis=1)
        return profile(p_nc, view.labels_n)

    if len(own.labels_n) < MIN_ROWS:  # as of a kernel: who sees so little believes nobody
        return lambda view: 0.0
    mine = of(own)
    return lambda view: profile_agreement(mine, of(view))
