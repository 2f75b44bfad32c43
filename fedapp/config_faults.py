"""The settings of a rehearsal of attacks: sites that are faulty on purpose."""

from __future__ import annotations

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from fedapp.config_section import Names, Section, setting
from fedapp.faults import ATTACKS, Attack
from fedapp.text import clean


class FaultsSection(Section):
    """Faulty sites, for rehearsals alone; a deployed node refuses such a run unless it is told."""

    sites: Names = setting("", "sites that attack in this run; empty: none, as ever outside tests")
    attack: Names = setting(
        "sign-flip",
        "what they send instead of their update; of several, one is drawn for every site and "
        "round: " + ", ".join(ATTACKS),
    )
    from_round: int = setting(1, "first round in which they attack; before, they are honest", ge=1)
    std: float = setting(0.3, "additive-noise: standard deviation, in the unit of weights", ge=0)
    share: float = setting(
        1.2,
        "multiplicative-noise: standard deviation relative to each weight; non-finite: share of "
        "the numbers that become NaN",
        ge=0,
        le=1e6,
    )
    factor: float = setting(10.0, "scaling: factor of the model", ge=-1e6, le=1e6)
    z: float = setting(1.5, "alie: distance from the mean, in standard deviations", ge=0, le=1e6)
    epsilon: float = setting(0.5, "ipm: share of the honest mean, with the sign turned", ge=0)
    delay: int = setting(3, "replay: age of the model sent", "rounds", ge=0, le=15)

    @field_validator("attack")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[Attack, ...]:
        """Refuse what is no attack."""
        known = tuple(name for name in ATTACKS if name in value)
        if odd := sorted(set(value) - set(ATTACKS)):
            raise PydanticCustomError(
                "attack", f"unknown attack '{clean(odd[0])}'; choose of {', '.join(ATTACKS)}"
            )
        if not known:
            raise PydanticCustomError("attack", "expected at least one attack")
        return known
