"""The service's socket: where it may be, whose it is, and who is there already."""

from __future__ import annotations

import os
import socket
import stat

import pytest
from site_desk import CONFIG, Service, instruction, write_site

from client_app.service.remote import RemoteSite
from fedapp.errors import ConfigError


def test_a_site_that_is_not_there_is_named(tmp_path):
    site = RemoteSite(f"unix:{tmp_path}/nowhere.sock", patience=0.3)

    reply = site.execute(instruction())
    described = site.describe(CONFIG, "Bern")

    assert reply.failure.kind == described.failure.kind == "SiteUnavailable"
    assert "is not running: its socket is not there" in reply.failure.message
    assert "start it with `fedapp site serve`" in reply.failure.message
    assert str(tmp_path) not in reply.failure.message


@pytest.mark.parametrize("address", ["run/site.sock", "host:1234", "", "unix:site.sock"])
def test_an_address_that_is_none_is_named(address):
    with pytest.raises(ConfigError, match="site-address is"):
        RemoteSite(address)


def test_the_socket_is_for_owner_and_group(service):
    mode = stat.S_IMODE(os.stat(service.config.socket).st_mode)

    assert mode == 0o660
    assert stat.S_IMODE(service.config.state.stat().st_mode) == 0o700


def test_a_folder_that_everybody_may_write_is_refused(tmp_path):
    path = write_site(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)

    with pytest.raises(ConfigError, match="may be written by everybody"), Service(path):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    path = write_site(tmp_path)
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 12345, 12345)

    with pytest.raises(ConfigError, match="belongs to user 12345"), Service(path):
        pass


def test_a_file_in_the_way_is_left_alone(tmp_path):
    path = write_site(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "site.sock").write_text("important")

    with pytest.raises(ConfigError, match="is there and is no socket"), Service(path):
        pass
    assert (tmp_path / "run" / "site.sock").read_text() == "important"


def test_a_second_service_on_the_socket_is_refused_and_a_dead_ones_socket_replaced(tmp_path):
    path = write_site(tmp_path)
    other = path.with_name("other.toml")
    other.write_text('state = "other"\n' + path.read_text())
    with Service(path) as service:
        with pytest.raises(ConfigError, match="another service listens"), Service(other):
            pass
        assert RemoteSite(service.address).execute(instruction()).failure is None
    (tmp_path / "run" / "site.sock").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "run" / "site.sock"))

    with Service(path) as service:
        assert RemoteSite(service.address).execute(instruction()).failure is None
