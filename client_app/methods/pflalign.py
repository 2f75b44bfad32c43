"""Client half of `pflalign` (arXiv 2605.02143): sure gradients count, an offset of one's own.

    theta <- theta_g + Delta                            the site's own beginning
    at each of the T steps, with the gradient g:
        theta <- theta - eta P g - gamma Delta / T      P, gamma: see `client_app.methods.moments`
    Delta <- theta - theta_g                            theta_g as it was received

Delta does not change during the round, so that with gamma = 1 throughout all of it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from client_app.distribution import distribution, evenly
from client_app.flat import FlatArrays
from client_app.methods.base import LocalRule
from client_app.methods.moments import (
    Scale,
    bias_scale,
    cosine_gate,
    direct_factor,
    moving_factor,
    sign_agreement,
    sign_probability,
    update_moments,
)
from client_app.methods.pflalign_state import PflAlignState
from client_app.parameters import AdapterParameters
from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar, TrainSection
from fedapp.state import State


class PflAlign(LocalRule):
    """Precondition every step, begin at the site's own offset, withdraw what of it is opposed.

    Four vectors of the size of what is trained live through a round: Delta, m, v and P; what the
    site has kept is let go once they are made. The rest is scratch of the length of a span
    (`client_app.flat`), so that a step walks through what fits into a cache and allocates nothing.
    Delta, v, P and the number of steps behind v stay at the site; m begins at zero in every round.
    """

    def __init__(self, config: RunConfig, parameters: AdapterParameters) -> None:
        super().__init__(config, parameters)
        self._own = own = config.pflalign
        self.offset = own.personalisation
        self.keeps_state = own.personalisation or own.local_update
        self._gated = own.personalisation and own.gate != "none"
        self._estimates = own.local_update or (self._gated and own.gate != "full")
        self._kept = PflAlignState()
        self._numbers: dict[str, float] = {}

    @property
    def _trained(self) -> FlatArrays:
        named = self.parameters.named_arrays()
        return FlatArrays([(name, array) for name, array in named if self.trainable(name)])

    def optimizer_settings(self) -> TrainSection:
        """Return those of plain SGD, or of AdamW if the extension is asked for."""
        return self.config.train.model_copy(update={"optimizer": self._own.base, "momentum": 0.0})

    def alone(self) -> LocalRule:
        """Return this rule without an offset: the rate is meant for preconditioned steps."""
        config = self.config.with_changes({"pflalign.personalisation": False})
        return PflAlign(config, self.parameters)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; see `PflAlignState.from_state` for what it refuses."""
        self._kept = PflAlignState.from_state(state, self._trained)

    def start(self, received: Mapping[str, Adapter]) -> Adapter:
        """Return the model received plus the site's offset; as it came while there is none."""
        delta = self._kept.delta
        return received["adapter"].map(lambda name, x: x + delta[name] if name in delta else x)

    def begin(
        self, received: Mapping[str, Adapter], settings: Mapping[str, Scalar], steps: int
    ) -> None:
        """Make the vectors, and the views by which a step reaches the arrays' own memory."""
        self._flat, kept = self._trained, self._kept
        flat, self._planned = self._flat, max(1, steps)
        self._step, self._lifetime = 0, kept.steps
        self._scale = Scale(1.0, 1.0)
        self._delta = flat.vector(kept.delta) if self._gated and kept.delta else None
        self._unshared = kept.delta if self._own.share == "update" else {}
        if self._estimates:
            self._m, self._v = flat.vector(), flat.vector(kept.second_moment or None)
        if self._own.local_update:
            self._p = flat.vector(kept.factor or None)
            self._factors = [span.shaped(span.of(self._p)) for span in flat.spans]
        self._kept = PflAlignState()
        self._g, self._spare = (torch.zeros(flat.longest, device=flat.device) for _ in range(2))
        self._scratch = [span.shaped(self._g) for span in flat.spans]
        self._values = [span.values() for span in flat.spans]
        self._alpha, self._withdrawn, self._shared = (
            torch.zeros((), dtype=torch.float64, device=flat.device) for _ in range(3)
        )

    @torch.no_grad()
    def transform_gradients(self) -> None:
        """Take the gradient into the moments and multiply it by its factor."""
        if not self._estimates:
            return
        own = self._own
        self._step, self._lifetime = self._step + 1, self._lifetime + 1
        corrected = bias_scale(own.beta, self._step, self._lifetime)
        self._scale = corrected if own.bias_correction else Scale(1.0, 1.0)
        for number, span in enumerate(self._flat.spans):
            m, v = span.of(self._m), span.of(self._v)
            g, spare = self._g[: len(m)], self._spare[: len(m)]
            gradients = span.gradients()
            torch._foreach_copy_(self._scratch[number], gradients)
            update_moments(m, v, g, own.beta)
            if not own.local_update:
                continue
            p = span.of(self._p)
            if own.factor == "direct":
                direct_factor(p, m, v, corrected, own.beta, self._step, spare)
            else:
                alpha = moving_factor(p, g, m, v, self._scale, own.beta, own.eps, spare)
                self._alpha += alpha.sum()
            torch._foreach_mul_(gradients, self._factors[number])

    @torch.no_grad()
    def after_step(self, learning_rate: float) -> None:
        """Withdraw this step's part of Delta."""
        if self._delta is None:
            return
        if self._own.gate == "scalar":
            self._shared = cosine_gate(self._m, self._delta)
        for number, span in enumerate(self._flat.spans):
            delta = span.of(self._delta)
            out, spare = self._g[: len(delta)], self._spare[: len(delta)]
            self._gate(self._delta, span.of, out, spare).mul_(delta)
            self._withdrawn += torch.dot(out, delta)
            torch._foreach_add_(
                self._values[number], self._scratch[number], alpha=-1 / self._planned
            )

    def _gate(
        self, delta: Tensor, pick: Callable[[Tensor], Tensor], out: Tensor, spare: Tensor
    ) -> Tensor:
        """Write gamma of some numbers into ``out``; return it."""
        kind = self._own.gate
        if kind == "full":
            return out.fill_(1)
        if kind == "scalar":
            return out.copy_(self._shared)
        if kind == "hard":
            return sign_agreement(pick(self._m), pick(delta), out, spare)
        m, v, scale = pick(self._m), pick(self._v), self._scale
        return sign_probability(m, v, pick(delta), scale, self._own.eps, out, spare)

    @torch.no_grad()
    def finish(self, received: Mapping[str, Adapter]) -> dict[str, Adapter]:
        """Return the trained adapter, and note the new offset and what to report."""
        own, flat = self._own, self._flat
        payloads = super().finish(received)
        self._numbers = self._told()
        delta = {}
        if own.personalisation:
            before, after = dict(received["adapter"].arrays()), dict(payloads["adapter"].arrays())
            delta = {name: after[name] - before[name] for name, _ in flat.named}
            self._numbers["delta_norm"] = float(_norm(flat.vector(delta)))
        if offset := self._unshared:
            model = payloads["adapter"]
            payloads["adapter"] = model.map(
                lambda name, x: x - offset[name] if name in offset else x
            )
        self._unshared = {}
        moving = own.local_update and own.factor == "recursion"
        self._delta = None  # the round's own vectors are done with
        self._kept = PflAlignState(
            delta=delta,
            second_moment=flat.arrays(self._v) if self._estimates else {},
            factor=flat.arrays(self._p) if moving else {},
            steps=self._lifetime,
        )
        if self._estimates:
            del self._m
        return payloads

    def _told(self) -> dict[str, float]:
        """Return the distributions at the last step, and what was summed up over all of them."""
        numbers: dict[str, float] = {}
        some = evenly(self._flat.size)
        if self._own.local_update:
            numbers |= distribution("factor", self._p[some])
            if self._own.factor == "recursion" and self._step and self._flat.size:
                numbers["alpha_mean"] = float(self._alpha) / self._step / self._flat.size
        if self._delta is not None:
            delta = self._delta[some]
            out, spare = torch.empty_like(delta), torch.empty_like(delta)
            gate = self._gate(self._delta, lambda vector: vector[some], out, spare)
            numbers |= distribution("gate", gate[delta != 0])
            whole = float(_norm(self._delta)) ** 2
            if whole:
                numbers["delta_withdrawn"] = float(self._withdrawn) / self._planned / whole
        return numbers

    def numbers(self) -> dict[str, float]:
        """What the two halves did.

        ``factor_mean``, ``_p10``, ``_p50``, ``_p90``
            P at the last step; the step is that of plain SGD times it.
        ``alpha_mean``
            Moving factor, over numbers and steps.
        ``gate_mean``, ``_p10``, ``_p50``, ``_p90``
            gamma at the last step, where Delta is not zero.
        ``delta_withdrawn``
            Share of the Delta that the round began with which its gates have withdrawn.
        ``delta_norm``
            ``||Delta||`` after the round.
        """
        return self._numbers

    def state_dict(self) -> State:
        """Delta, v, P and the number of steps behind v."""
        return self._kept.to_state()


def _norm(vector: Tensor) -> Tensor:
    """Return the Euclidean norm, summed up in fp64 without a copy in it."""
    norm: Tensor = torch.linalg.vector_norm(vector, dtype=torch.float64)
    return norm
