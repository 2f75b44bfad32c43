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


class FedyogiSection(Section):
    """Algorithm fedyogi (arXiv 2003.00295)."""

    server_lr: float = setting(0.01, "eta, about the largest step of a number", gt=0, le=100)
    beta_1: float = setting(0.9, "decay of the mean of what rounds add", ge=0, lt=1)
    beta_2: float = setting(0.99, "decay of its second moment", ge=0, lt=1)
    tau: float = setting(
        1e-3, "added to the root of the second moment, which starts at its square", gt=0, le=100
    )


class FedsamSection(Section):
    """Algorithm fedsam (arXiv 2206.02618)."""

    rho: float = setting(0.05, "distance uphill at which a gradient is taken", ge=0, le=100)


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
