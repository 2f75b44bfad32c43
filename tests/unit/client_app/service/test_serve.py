"""`serve` from the file to its end: what it finds in its place, and a disk that is full."""

from __future__ import annotations

import pytest
from site_desk import Service, instruction, write_site

from client_app.service.remote import RemoteSite
from client_app.service.serve import serve
from fedapp.errors import ConfigError


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
