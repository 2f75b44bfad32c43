"""What settings of different sections must have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedapp.config_trainable import check_trainable
from fedapp.errors import ConfigError
from fedapp.registry import ALGORITHMS, METHODS

if TYPE_CHECKING:
    from fedapp.config import RunConfig


def check_relations(config: RunConfig) -> None:
    """Check the settings that each alone may have the values that they have.

    Raises
    ------
    ConfigError
        For the first combination that makes no sense: the values, and what to change.
    """
    if config.data.validation_fraction + config.data.test_fraction >= 1:
        raise ConfigError(
            "data.validation-fraction + data.test-fraction must stay below 1, got "
            f"{config.data.validation_fraction} + {config.data.test_fraction}"
        )
    if config.data.labels and config.model.task in ("causal-lm", "multiple-choice"):
        raise ConfigError(
            f"data.labels names labels, but model.task is {config.model.task}, which has none; "
            "leave data.labels empty, or set model.task to sequence-classification"
        )
    check_trainable(config)
    if config.model.task == "causal-lm" and config.train.generate_tokens >= config.model.max_length:
        raise ConfigError(
            "train.generate-tokens must stay below model.max-length, which prompt and answer "
            f"share, got {config.train.generate_tokens} and {config.model.max_length}"
        )
    both = sorted(set(config.faults.sites) & set(config.federation.held_out))
    if both:
        raise ConfigError(
            f"faults.sites and federation.held-out both name {', '.join(both)}, but a site that "
            "never trains sends nothing that could be false; name it in one of them"
        )
    own = METHODS[config.method].personal
    if own and config.federation.held_out:
        raise ConfigError(
            f"federation.held-out names {', '.join(config.federation.held_out)}, but with method "
            f"{config.method} {own} are each site's own, and a site that never trains has none; "
            "leave federation.held-out empty"
        )
    if ALGORITHMS[config.federation.algorithm].fixed_basis and METHODS[config.method].moves_basis:
        raise ConfigError(
            f"federation.algorithm {config.federation.algorithm} squares each number of the "
            f"factors, and method {config.method} gives the pairs other factors every round, whose "
            "numbers mean something else; choose fedavgm, or method fedavg"
        )
    if (
        config.scaffold.variate == "displacement"
        and config.federation.algorithm == "scaffold"
        and (why := _no_sum_of_gradients(config))
    ):
        raise ConfigError(
            f"scaffold.variate is displacement, {why}; set scaffold.variate = gradients"
        )
    rows, rank = config.dysco.rows, config.lora.rank
    if config.method == "dysco" and 0 < rows < rank:
        raise ConfigError(
            f"dysco.rows is {rows}, but a site trains {rank} directions; set it to 0 or to "
            f"lora.rank = {rank} or more"
        )
    if METHODS[config.method].peer_rule:
        _check_peers(config)
    if not config.lora.targets:
        raise ConfigError("lora.targets is empty; name at least one linear layer")


def _no_sum_of_gradients(config: RunConfig) -> str:
    """Say why a site's displacement is more, or less, than its gradients times the rates."""
    if config.method == "pflalign":
        return (
            "but under method pflalign a site's displacement is no sum of gradients: each is "
            "multiplied by its factor, and part of the offset is withdrawn at every step"
        )
    if config.train.optimizer != "sgd":
        return (
            "which means a sum of gradients only with train.optimizer sgd, got "
            f"{config.train.optimizer}"
        )
    return ""


def _check_peers(config: RunConfig) -> None:
    """Check what has no meaning where sites exchange their models without a coordinator."""
    federation = config.federation
    for key, value, neutral, why in (
        ("algorithm", federation.algorithm, "fedavg", "there is no merge that it could change"),
        ("interference", federation.interference, False, "no site knows all updates"),
        ("interference-each", federation.interference_each, False, "no site knows all updates"),
        ("gsnr", federation.gsnr, 0, "its probe follows a shared model"),
    ):
        if value != neutral:
            raise ConfigError(
                f"federation.{key} is {value}, but with method {config.method} {why}; set it to "
                f"{str(neutral).lower()}"
            )
    if config.method == "lightyear":
        config.lightyear.effective()
