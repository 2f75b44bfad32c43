"""`serve` from the file to its end: what it finds in its place, and a disk that is full."""

from __future__ import annotations

import os
import signal

import pytest
from site_desk import Service, instruction, write_site

from client_app.service.remote import RemoteSite
from client_app.service.serve import serve
from fedapp.audit import AuditLog
from fedapp.errors import ConfigError, LedgerError


def test_what_is_in_the_sockets_place_is_still_there_after_the_refusal(tmp_path):
    path = write_site(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "site.sock").write_text("important")

    with pytest.raises(ConfigError, match="is there and is no socket"):
        serve(path)
    assert (tmp_path / "run" / "site.sock").read_text() == "important"


def test_another_services_socket_is_left_to_it(tmp_path):
    path = write_site(tmp_path)
    other = path.with_name("other.toml")
    other.write_text('state = "other"\n' + path.read_text())

    with Service(path) as service:
        with pytest.raises(ConfigError, match="another service listens"):
            serve(other)
        assert RemoteSite(service.address, patience=1.0).execute(instruction()).failure is None


class Left(BaseException):
    """In the place of the process's end."""


def test_a_full_disk_does_not_keep_a_service_from_its_end(tmp_path, monkeypatch):
    path, said, record = write_site(tmp_path), [], AuditLog.record

    def full(audit, event, **what):
        if event == "ended":
            raise LedgerError("the audit log cannot be written (No space left on device)")
        record(audit, event, **what)

    def leave(code):
        raise Left(code)

    def say(line):
        said.append(line)
        if line == "Bern is ready":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(AuditLog, "record", full)
    monkeypatch.setattr(os, "_exit", leave)

    with pytest.raises(Left) as left:
        serve(path, say)

    assert left.value.args == (0,)
    assert "its end is not in the audit log: the audit log cannot be written" in said[-2]
    assert said[-1].startswith("Bern has ended; audit log ")
    assert not (tmp_path / "run" / "site.sock").exists()
