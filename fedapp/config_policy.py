"""The settings of a site's policy: what it does for a coordinator, and what leaves."""

from __future__ import annotations

import zoneinfo
from typing import Annotated

from pydantic import AfterValidator

from fedapp.config_section import Names, Section, setting
from fedapp.opening_hours import Span, parse_span


def _hours(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        parse_span(text)
    return texts


def _zone(name: str) -> str:
    if name:
        try:
            zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            raise ValueError("expected a time zone such as Europe/Zurich, or nothing") from None
    return name


class PolicySection(Section):
    """A request that breaks a rule is refused with the rule's name; a list without names is open.

    Who is let in is no secret: a rule's name and limit are told to whoever breaks it.
    """

    app_versions: Names = setting((), "versions of the app that may ask; empty: this site's own")
    coordinators: Names = setting(
        (), "names of coordinators, as this site's SuperNode is configured with; empty: any"
    )
    hours: Annotated[Names, AfterValidator(_hours)] = setting(
        (), "when work may begin, such as mon-fri 18:00-24:00; empty: always"
    )
    time_zone: Annotated[str, AfterValidator(_zone)] = setting(
        "", "of the hours, such as Europe/Zurich; empty: this machine's"
    )
    methods: Names = setting((), "methods that may run; empty: all")
    algorithms: Names = setting((), "values of federation.algorithm that may run; empty: all")
    base_models: Names = setting((), "values of model.source that may be trained; empty: all")
    max_rank: int = setting(256, "largest rank of the adapter", ge=1, le=1024)
    max_rounds: int = setting(1000, "most rounds of a run", "rounds", ge=1, le=100000)
    max_local_steps: int = setting(
        0, "most optimiser steps of a round; 0: no limit", "steps", ge=0, le=10**9
    )
    min_records: int = setting(
        10, "metrics of fewer records than this do not leave", "records", ge=0, le=10**9
    )
    per_class_metrics: bool = setting(False, "whether metrics of single classes may leave")
    clip_norm: float = setting(
        0.0,
        "largest L2 norm of the difference between an update and what was received; a longer one "
        "is scaled down; 0: none",
        ge=0,
        le=1e9,
    )

    def spans(self) -> list[Span]:
        """Return the opening hours."""
        return [parse_span(text) for text in self.hours]
