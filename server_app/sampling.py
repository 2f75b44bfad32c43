"""Which sites train in a round: a pure function of seed, round and site names.

No state is carried from round to round, so the same sites are drawn whatever was lost before, and
a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.seeds import derive_seed


def training_sites(sites: Iterable[str], config: RunConfig) -> list[str]:
    """Return, sorted, the sites that may train: all but the held-out ones."""
    return sorted(set(sites) - set(config.federation.held_out))


def cohort_size(candidates: int, fraction: float) -> int:
    """Return how many of ``candidates`` sites train in a round, at least one."""
    return max(1, round(candidates * fraction))


def sample(sites: Iterable[str], config: RunConfig, round: int) -> list[str]:
    """Return the names, sorted, of the sites that train in ``round`` (from 1).

    Parameters
    ----------
    sites : iterable of str
        All sites of the run, in any order; held-out ones are never drawn.
    config : RunConfig
    round : int
    """
    candidates = training_sites(sites, config)
    size = cohort_size(len(candidates), config.federation.fraction)
    rng = np.random.default_rng(derive_seed(config.seed, "sampling", round))
    drawn = rng.choice(len(candidates), size=size, replace=False)
    return sorted(candidates[index] for index in drawn)


def check_sites(sites: Iterable[str], config: RunConfig) -> None:
    """Check that the settings can be met with these sites.

    Raises
    ------
    ConfigError
        If a held-out or faulty site does not exist, no site is left to train, none is honest, or a
        round could never have ``min-replies`` replies.
    """
    names, federation = sorted(sites), config.federation
    for setting, named in (
        ("federation.held-out", federation.held_out),
        ("faults.sites", config.faults.sites),
    ):
        unknown = sorted(set(named) - set(names))
        if unknown:
            raise ConfigError(f"{setting} names '{unknown[0]}', but the sites are "
                              f"{', '.join(names)}")  # fmt: skip
    candidates = training_sites(names, config)
    if not candidates:
        raise ConfigError("federation.held-out names every site; leave at least one to train")
    if not set(candidates) - set(config.faults.sites):
        raise ConfigError("faults.sites names every site that trains; leave at least one honest")
    size = cohort_size(len(candidates), federation.fraction)
    if min(federation.min_replies or size, size) < fewest_updates(config):
        raise ConfigError(
            f"method {config.method} needs at least {fewest_updates(config)} updates a round, but "
            f"{federation.min_replies or size} may be all; let more sites train, raise "
            "federation.min-replies, or presume fewer to be faulty"
        )
    if config.method == "fltrust" and (
        config.fltrust.root not in candidates or size < len(candidates)
    ):
        raise ConfigError(
            "method fltrust compares with one trusted site in every round: fltrust.root must be "
            f"one of {', '.join(candidates)}, and federation.fraction 1, got "
            f"'{config.fltrust.root}' and {federation.fraction}"
        )
    if federation.min_replies > size:
        raise ConfigError(
            f"federation.min-replies is {federation.min_replies}, but only {size} of "
            f"{len(candidates)} sites train in a round; lower it or raise federation.fraction"
        )


def fewest_updates(config: RunConfig) -> int:
    """Return how many updates the method's merge needs at least."""
    faulty = {"krum": config.krum.faulty, "multi-krum": config.multi_krum.faulty}
    return faulty[config.method] + 3 if config.method in faulty else 1


def needed_replies(asked: int, config: RunConfig) -> int:
    """Return how many valid updates a round of ``asked`` sites needs."""
    return config.federation.min_replies or asked
