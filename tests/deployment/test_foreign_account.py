"""Containers under an account that no image knows, as a hospital's own rules may demand."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from engine import inspect
from stack import HOSPITALS, STAYING, TINY, Stack

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

FOREIGN = {"FEDAPP_UID": "12345", "FEDAPP_GID": "23456"}


def test_a_run_completes_under_a_foreign_account_on_a_read_only_root(
    stacks: Callable[..., Stack],
) -> None:
    stack = stacks(environment=FOREIGN)
    stack.up()
    run = stack.run("foreign", **TINY, **{"federation.rounds": 1, "train.max-steps": 2})

    assert run.result() == 0, run.output
    assert sorted(run.summary()["sites"]) == sorted(HOSPITALS.values())
    for service in STAYING:
        assert stack.exec(service, "id", "-u").stdout.strip() == FOREIGN["FEDAPP_UID"]
        assert stack.exec(service, "id", "-g").stdout.strip() == FOREIGN["FEDAPP_GID"]
        assert inspect(stack.container(service))["HostConfig"]["ReadonlyRootfs"] is True
    owner = (run.folder / "status.json").stat()
    assert (owner.st_uid, owner.st_gid) == (12345, 23456)
    assert json.loads((run.folder / "status.json").read_text())["state"] == "completed"
