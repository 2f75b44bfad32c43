"""Health as the engine sees it: alive, and of use, are two things."""

from __future__ import annotations

import pytest
from stack import HOSPITALS, STAYING, Stack

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
SUPERNODES = [f"supernode-{name}" for name in HOSPITALS]


def test_all_that_works_is_healthy(stack: Stack) -> None:
    for service in STAYING:
        assert stack.state(service)["Running"]
        assert stack.health(service)[0] == "healthy"
    assert stack.health("coordinator")[1] == "the gate answers"
    assert stack.health("superexec")[1] == "connected to superlink:8000"
    for name, site in HOSPITALS.items():
        assert stack.health(f"supernode-{name}")[1] == "connected to coordinator:8443"
        assert stack.health(f"site-{name}")[1].startswith(f"{site}, fedapp 0.1.0: ")


def test_a_supernode_without_its_coordinator_is_alive_and_told_to_be_offline(
    stack: Stack,
) -> None:
    stack.stop("coordinator")
    try:
        for service in SUPERNODES:
            stack.wait_until(
                lambda service=service: stack.health(service)[0] == "unhealthy",  # type: ignore[misc]
                180,
                f"{service} to be unhealthy",
            )
            assert stack.health(service)[1] == (
                "alive, but offline: no connection to coordinator:8443"
            )
            assert stack.state(service)["Running"]
            assert stack.restarts(service) == 0
        assert stack.health("site-hungary")[0] == "healthy", "of it nothing is wrong"
    finally:
        stack.start("coordinator")
    stack.wait_healthy(*SUPERNODES, within=180)


def test_a_service_whose_process_hangs_is_unhealthy(stack: Stack) -> None:
    """A site's; and of the gate the process that answers, which is not the one that listens."""
    hung = {
        "site-long-beach": "/proc/1/task/1/children",  # of the first process, docker's init
        "coordinator": "/proc/$(cat /tmp/nginx.pid)/task/*/children",
    }

    def send(signal: str) -> None:
        for service, children in hung.items():
            stack.exec(service, "sh", "-c", f"kill -{signal} $(cat {children})")

    send("STOP")
    try:
        for service in hung:
            stack.wait_until(
                lambda service=service: stack.health(service)[0] == "unhealthy",  # type: ignore[misc]
                120,
                f"{service} to be unhealthy",
            )
            assert "does not answer" in stack.health(service)[1]
            assert stack.state(service)["Running"]
    finally:
        send("CONT")
    stack.wait_healthy(*hung, *SUPERNODES, within=180)
