"""Whose midnight the opening hours of a site's policy mean."""

from __future__ import annotations

from datetime import UTC, datetime

from fedapp.config_policy import PolicySection
from fedapp.preflight.finding import Finding, Status


def check_hours(policy: PolicySection) -> Finding:
    """Look whether the hours have a zone of their own: a container's clock is seldom local."""
    if not policy.hours:
        return Finding("hours", Status.OK, "work may begin at any time")
    hours = ", ".join(policy.hours)
    if policy.time_zone:
        return Finding("hours", Status.OK, f"{hours}, time zone {policy.time_zone}")
    here = datetime.now(UTC).astimezone()
    return Finding(
        "hours", Status.WARNING,
        f"{hours} without a time zone: this machine's, where it is {here:%H:%M %Z}",
        "name yours, such as time-zone = \"Europe/Zurich\"",
    )  # fmt: skip
