"""Opening hours without a zone are the container's, which is seldom the hospital's."""

import time

import pytest

from fedapp.config_policy import PolicySection
from fedapp.preflight.finding import Status
from fedapp.preflight.hours import check_hours


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock of an image: nobody has set a zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_hours_without_a_zone_are_a_warning():
    found = check_hours(PolicySection(hours="mon-fri 18:00-24:00"))
    assert found.status is Status.WARNING
    assert found.detail.startswith("mon-fri 18:00-24:00 without a time zone: this machine's, ")
    assert found.detail.endswith(" UTC")
    assert "time-zone" in found.advice


def test_hours_with_a_zone_and_no_hours_are_well():
    found = check_hours(PolicySection(hours="sun 00:00-24:00", time_zone="Europe/Zurich"))
    assert (found.status, found.detail) == (Status.OK, "sun 00:00-24:00, time zone Europe/Zurich")
    assert check_hours(PolicySection()).status is Status.OK
