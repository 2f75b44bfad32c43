"""The settings of pFLAlign."""

from __future__ import annotations

from typing import Literal

from fedapp.config_section import Section, setting


class PflalignSection(Section):
    """Method pflalign (arXiv 2605.02143)."""

    base: Literal["sgd", "adamw"] = setting(
        "sgd",
        "what takes the preconditioned gradient, in place of train.optimizer: plain steps without "
        "momentum as in the paper, or AdamW, which is our extension",
    )
    local_update: bool = setting(
        True, "first half: every number of the gradient times its factor E[g]^2 / E[g^2]"
    )
    factor: Literal["recursion", "direct"] = setting(
        "recursion",
        "how that factor is estimated: by the paper's moving factor, or anew at every step (SVAG)",
    )
    beta: float = setting(0.9, "decay of the gradient's moving moments", ge=0, lt=1)
    eps: float = setting(1e-12, "added to denominators", gt=0, le=1)
    bias_correction: bool = setting(
        True, "divide the moments by 1 - beta^t; false: as the published recursion has it"
    )
    personalisation: bool = setting(
        True, "second half: begin at the site's own offset Delta, and withdraw what opposes it"
    )
    gate: Literal["coordinate", "scalar", "hard", "none", "full"] = setting(
        "coordinate",
        "share of Delta that a round withdraws: the probability that a gradient has its sign, "
        "number by number; ablations: one cosine for all, 0 or 1 by the signs, nothing, everything",
    )
    share: Literal["model", "update"] = setting(
        "model",
        "what is sent: the model with the offset in it, as in the algorithm, or without the offset "
        "that the site began at",
    )
