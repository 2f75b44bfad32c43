"""What is on a site's desk is called off by its operator."""

from __future__ import annotations

import threading

import pytest
from site_desk import Service, echo, instruction, write_site
from site_gate import gated, in_thread, one_runs_and_one_waits, wait_until
from typer.testing import CliRunner

from client_app.service.calls import task_id
from client_app.service.cancel import call_off
from client_app.service.remote import RemoteSite
from fedapp.cli import app
from fedapp.errors import LedgerError
from fedapp.headers import write_instruction


@pytest.mark.parametrize("which", [1, 2])
def test_a_task_is_called_off(tmp_path, which):
    gate, running = gated(tmp_path)
    with running as service:
        asked = [instruction(round=1), instruction(round=2)]
        replies = one_runs_and_one_waits(service, gate, asked)
        found = call_off(service.config.socket, task_id(write_instruction(asked[which - 1])))
        unknown = call_off(service.config.socket, task_id(write_instruction(instruction(round=9))))
        if which == 2:
            gate.open.set()
        else:
            wait_until(lambda: len(gate.calls) == 2)
            gate.open.set()
        kinds = [getattr(reply().failure, "kind", None) for reply in replies]

        assert [words.split(",")[0] for words in found.called_off] == [f"train of round {which}"]
        assert (found.ending, unknown) == ([], ([], []))
        assert service.events()[0]["event"] == "cancelled"
    assert kinds[2 - which] is None
    assert kinds[which - 1] == "TaskCancelled"


def test_an_operator_is_told_what_is_called_off_what_is_ending_and_that_there_is_nothing(tmp_path):
    began, end = threading.Event(), threading.Event()

    def slow_to_end(task):
        began.set()
        assert end.wait(30)
        return echo(task)

    with Service(path := write_site(tmp_path), slow_to_end) as service:

        def told():
            done = CliRunner().invoke(app, ["site", "cancel", "--config", str(path)])
            return done.exit_code, done.stdout

        idle = told()
        reply = in_thread(RemoteSite(service.address).execute, instruction())
        assert began.wait(10)
        first, second = told(), told()
        events = [event["event"] for event in service.events()]
        end.set()
        reply()

    assert idle == (0, "nothing to call off: the service is idle\n")
    assert first == (0, "called off: train of round 1\n")
    assert second == (0, "is ending already: train of round 1\n")
    assert events == ["cancelled"]


def test_a_full_disk_keeps_no_task_from_being_called_off(tmp_path, monkeypatch):
    gate, running = gated(tmp_path)
    with running as service:
        replies = one_runs_and_one_waits(service, gate, [instruction(round=n) for n in (1, 2)])

        def full(*_args, **_what):
            raise LedgerError("no space left")

        monkeypatch.setattr(service.audit, "record", full)
        told = call_off(service.config.socket)
        kinds = [getattr(reply().failure, "kind", None) for reply in replies]

    assert len(told.called_off) == 2
    assert kinds == ["TaskCancelled", "TaskCancelled"]
