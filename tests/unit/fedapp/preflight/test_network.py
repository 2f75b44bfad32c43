"""The way to the coordinator: each thing that can be wrong has a name and a remedy."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from tls_servers import DAY, NOW, Issuer, listening

from fedapp.config_site import DialSection
from fedapp.preflight.certificates import check_files
from fedapp.preflight.finding import Status, failed
from fedapp.preflight.network import check_network

CHECKS = ["name", "port", "tls", "certificates", "clock"]


@pytest.fixture
def issuer():
    return Issuer()


def look(port, authority, host="localhost", **more):
    fields = {"superlink": f"{host}:{port}", "authority": str(authority), "timeout": 5.0, **more}
    found = check_network(DialSection.model_validate(fields))
    assert [finding.check for finding in found] == CHECKS
    return {finding.check: finding for finding in found}


def failure(found):
    """The one step that failed; all after it are skipped."""
    (bad,) = [finding for finding in found.values() if finding.status is Status.FAILED]
    after = CHECKS[CHECKS.index(bad.check) + 1 :]
    assert {found[name].status for name in after} <= {Status.SKIPPED}
    assert bad.advice
    return bad.check, bad.detail


def test_all_is_well(tmp_path, issuer):
    with listening(issuer.issue(tmp_path)) as port:
        found = look(port, issuer.write(tmp_path))

    assert [finding.status for finding in found.values()] == [Status.OK] * 5
    assert "localhost is 127.0.0.1" in found["name"].detail or "::1" in found["name"].detail
    assert "TLSv1.3, certificate of localhost, 127.0.0.1" in found["tls"].detail


def test_nothing_is_looked_at_without_an_address():
    found = check_network(DialSection())

    assert {finding.status for finding in found} == {Status.SKIPPED}
    assert not failed(found)


def test_a_name_that_is_not_known(tmp_path, issuer):
    found = look(443, issuer.write(tmp_path), host="no-such-host.invalid")

    assert failure(found)[0] == "name"


def test_a_port_that_is_closed(tmp_path, issuer):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        found = look(one.getsockname()[1], issuer.write(tmp_path), host="127.0.0.1")

    check, detail = failure(found)
    assert (check, "is closed" in detail) == ("port", True)


def test_plain_text_where_tls_should_be(tmp_path, issuer):
    with listening(None) as port:
        found = look(port, issuer.write(tmp_path), host="127.0.0.1")

    check, detail = failure(found)
    assert (check, "answers without TLS" in detail) == ("tls", True)
    assert "--insecure" in found["tls"].advice


def test_a_certificate_of_another_name(tmp_path, issuer):
    with listening(issuer.issue(tmp_path, ["superlink.example.org"])) as port:
        found = look(port, issuer.write(tmp_path), host="127.0.0.1")

    assert failure(found) == (
        "tls", "the certificate is of superlink.example.org, not of 127.0.0.1",
    )  # fmt: skip


def test_a_foreign_authority(tmp_path, issuer):
    with listening(issuer.issue(tmp_path)) as port:
        found = look(port, Issuer("somebody else").write(tmp_path), host="127.0.0.1")

    check, detail = failure(found)
    assert (check, "issued by another authority" in detail) == ("tls", True)
    assert "by phone" in found["tls"].advice


@pytest.mark.parametrize(
    ("first", "last", "word"),
    [(NOW - 9 * DAY, NOW - DAY, "expired"), (NOW + DAY, NOW + 9 * DAY, "too new")],
)
def test_a_certificate_outside_its_dates(tmp_path, issuer, first, last, word):
    with listening(issuer.issue(tmp_path, first=first, last=last)) as port:
        found = look(port, issuer.write(tmp_path), host="127.0.0.1")

    check, detail = failure(found)
    assert (check, word in detail) == ("tls", True)


def test_a_certificate_that_ends_soon_is_a_warning(tmp_path, issuer):
    with listening(issuer.issue(tmp_path, last=NOW + 9 * DAY)) as port:
        found = look(port, issuer.write(tmp_path), host="127.0.0.1")

    assert found["certificates"].status is Status.WARNING
    assert found["clock"].status is Status.OK


@pytest.mark.parametrize(("minutes", "status"), [(0, "ok"), (10, "failed"), (-10, "failed")])
def test_a_clock_that_differs(tmp_path, issuer, minutes, status):
    with listening(issuer.issue(tmp_path), timedelta(minutes=minutes)) as port:
        found = look(port, issuer.write(tmp_path), host="127.0.0.1")

    assert found["clock"].status == status
    offset = float(found["clock"].detail.split(" s ")[0])
    assert offset == pytest.approx(-60 * minutes, abs=5)


def test_an_authority_that_is_no_certificate(tmp_path, issuer):
    (tmp_path / "authority.pem").write_text("nothing")
    with listening(issuer.issue(tmp_path)) as port:
        found = look(port, tmp_path / "authority.pem", host="127.0.0.1")

    assert failure(found)[0] == "tls"


def test_dates_of_certificate_files(tmp_path, issuer):
    old = issuer.issue(tmp_path, first=NOW - 9 * DAY, last=NOW - DAY)
    files = [str(issuer.write(tmp_path)), str(old), str(tmp_path / "missing.pem"), __file__]

    found = check_files(files, NOW)

    assert [finding.status for finding in found] == [Status.OK, *[Status.FAILED] * 3]
    assert "expired" in found[1].detail
    assert "does not exist" in found[2].detail
    assert "no certificate in PEM" in found[3].detail
