"""The settings of the algorithms, a section each."""

from __future__ import annotations

from typing import Literal

from fedapp.config_section import Section, setting


class FedavgmSection(Section):
    """Algorithm fedavgm (arXiv 1909.06335)."""

    momentum: float = setting(0.9, "beta of the coordinator's momentum", ge=0, lt=1)
    server_lr: float = setting(1.0, "factor of the momentum in the model's step", gt=0, le=100)
    dampening: bool = setting(
        False, "u <- beta u + (1 - beta) d instead of u <- beta u + d, d what the round adds"
    )
    rank_cap: int = setting(
        0,
        "largest rank of the momentum of a product B A, for methods that change the basis; "
        "0: four times lora.rank",
        ge=0,
        le=65536,
    )


class FedproxSection(Section):
    """Algorithm fedprox (arXiv 1812.06127)."""

    mu: float = setting(0.01, "weight of mu/2 ||w - w_g||^2, w_g as received", ge=0, le=1e6)


class ScaffoldSection(Section):
    """Algorithm scaffold (arXiv 1910.06378)."""

    variate: Literal["gradients", "displacement"] = setting(
        "gradients",
        "a site's new control variate: the mean of its gradients, with any local optimiser, or the "
        "paper's option II from the displacement, with sgd only",
    )
    rank_cap: int = setting(
        0,
        "largest rank of a variate of a product B A, for methods that change the basis; "
        "0: four times lora.rank",
        ge=0,
        le=65536,
    )
