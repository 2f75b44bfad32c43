"""A health check that is not content with a process that is alive."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest
from peers import PeerProcesses
from provisioning import Coordinator

from fedapp.provision.health import connected, main

HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("   0: 0100007F:CF44 0100007F:1F40 01 00000000:00000000", True),
        ("   0: 0100007F:CF44 0100007F:1F40 06 00000000:00000000", False),  # closing
        ("   0: 0100007F:CF44 0100007F:1F40 02 00000000:00000000", False),  # asking
        ("   0: 0100007F:1F40 0100007F:CF44 01 00000000:00000000", False),  # somebody calls here
        ("   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000", False),  # listening
        ("   0:", False),
    ],
)
def test_a_connection_outwards_counts(tmp_path: Path, row: str, found: bool) -> None:
    table = tmp_path / "tcp"
    table.write_text(HEAD + row + "\n", encoding="ascii")
    assert connected(8000, patience=0, tables=[tmp_path / "absent", table]) is found


def test_a_real_connection_is_seen_and_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not connected(port, patience=0)
        with socket.create_connection(("127.0.0.1", port)):
            assert connected(port, patience=0)
        assert not connected(port, patience=0)


def test_a_supernode_without_a_connection_is_told_from_one_that_is_not_set_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(tmp_path, ["Basel"], address="127.0.0.1:9")
    coordinator.complete()
    monkeypatch.setattr("fedapp.provision.health._PATIENCE", 0.0)
    monkeypatch.setattr("fedapp.provision.health.connected", lambda port: port == 10)
    join = coordinator.folder.kit("Basel") / "join.toml"

    assert main(["supernode", str(join)]) == 1
    assert "alive, but offline: no connection to 127.0.0.1:9" in capsys.readouterr().out
    join.write_text(join.read_text(encoding="utf-8").replace(":9", ":10"), encoding="utf-8")
    assert main(["supernode", str(join)]) == 0
    assert main(["supernode", str(tmp_path / "absent")]) == 1
    assert "does not exist" in capsys.readouterr().out
    assert main(["superexec", "superlink:10"]) == 0
    assert main(["superexec", "superlink:8000"]) == 1
    assert "alive, but offline: no connection to superlink:8000" in capsys.readouterr().out
    assert main([]) == 2


def test_a_superlink_that_does_not_answer_is_unhealthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = Coordinator(tmp_path)
    coordinator.provision()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main(["superlink", f"127.0.0.1:{port}", str(coordinator.folder.authority)]) == 1
    assert "does not answer" in capsys.readouterr().out
    assert main(["superlink", f"127.0.0.1:{port}", str(tmp_path / "absent")]) == 1


def test_a_peer_is_asked_whether_it_is_the_one_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.provision.health._ANSWER", 1.0)
    with PeerProcesses(tmp_path, ["Basel", "Bern"]) as sites:
        file = sites.site("Basel")
        assert main(["peer", str(file)]) == 1
        assert f"on port {sites.ports['Basel']}: " in capsys.readouterr().out

        process = sites.peer("Basel")
        end = time.monotonic() + 60
        while main(["peer", str(file)]):
            assert time.monotonic() < end, capsys.readouterr().out
            assert process.poll() is None
            time.sleep(0.1)
        # Alive, and the kernel still takes connections for it.
        process.send_signal(signal.SIGSTOP)
        while not main(["peer", str(file)]):  # its threads stop one after the other
            assert time.monotonic() < end
        assert "timed out" in capsys.readouterr().out
        process.send_signal(signal.SIGCONT)
        # Another's port.
        text = sites.site("Bern").read_text(encoding="utf-8")
        other = tmp_path / "site-1" / "other.toml"
        ports = (str(sites.ports[name]) for name in ("Bern", "Basel"))
        other.write_text(text.replace(*ports), encoding="utf-8")
        assert main(["peer", str(other)]) == 1
        assert "certificate is not valid for" in capsys.readouterr().out
        assert main(["peer", str(tmp_path / "absent")]) == 1
