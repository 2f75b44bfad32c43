"""Which site attacks in which round, and how a run says that it is a rehearsal of attacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast, get_args

from fedapp.seeds import derive_seed

if TYPE_CHECKING:
    from fedapp.config import RunConfig

Attack = Literal[
    "none",
    "additive-noise",
    "multiplicative-noise",
    "sign-flip",
    "update-flip",
    "random",
    "head-flip",
    "head-permutation",
    "neuron-permutation",
    "scaling",
    "label-flip",
    "alie",
    "ipm",
    "replay",
    "non-finite",
    "free-rider",
]
ATTACKS: tuple[Attack, ...] = get_args(Attack)
COLLUDING: frozenset[Attack] = frozenset({"alie", "ipm"})
"""Attacks that are computed from what honest sites send."""


def choose(kinds: Sequence[Attack], seed: int, site: str, round: int) -> Attack:
    """Return the attack of this site in this round, each kind as likely as any other."""
    if not kinds:
        raise ValueError("no attack to choose from")
    return kinds[derive_seed(seed, "attack", site, round) % len(kinds)]


def planned(config: RunConfig, site: str, round: int) -> Attack:
    """Return what ``site`` does in ``round``: ``"none"`` unless the settings declare it faulty."""
    faults = config.faults
    if site not in faults.sites or round < faults.from_round:
        return "none"
    kinds = cast(tuple[Attack, ...], faults.attack)  # its section lets nothing else pass
    return choose(kinds, config.seed, site, round)


def attackers(config: RunConfig, round: int) -> dict[str, Attack]:
    """Return the sites that attack in ``round`` and their attacks."""
    each = {site: planned(config, site, round) for site in sorted(config.faults.sites)}
    return {site: attack for site, attack in each.items() if attack != "none"}


def rehearsal(config: RunConfig) -> str:
    """Return the sentence by which a run with faulty sites is recognised; empty without any."""
    faults = config.faults
    if not faults.sites:
        return ""
    some = " or ".join(faults.attack) + (", drawn every round," if len(faults.attack) > 1 else "")
    return (
        f"REHEARSAL OF ATTACKS: {', '.join(sorted(faults.sites))} "
        f"{'is' if len(faults.sites) == 1 else 'are'} faulty on purpose ({some} from round "
        f"{faults.from_round} on); means and tables are those of the honest sites, and the model "
        "is for no other use"
    )
