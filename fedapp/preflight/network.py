"""The way to the coordinator, step by step: name, port, TLS, clock.

Nothing is sent but a request for the health page; each step is tried only if the one before worked.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from cryptography import x509

from fedapp.config_site import DialSection
from fedapp.preflight.certificates import dates, utc_now
from fedapp.preflight.finding import Finding, Status
from fedapp.text import clean

if TYPE_CHECKING:
    from fedapp.gossip.start import Start

_PLAIN_ANSWERS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}
_STEPS = ("name", "port", "tls", "certificates", "clock")

# OpenSSL's codes of why a chain of certificates is not accepted.
_EXPIRED, _NOT_YET = 10, 9
_NAME = {62, 64}  # of a host, of an address
_FOREIGN = {2, 18, 19, 20, 21}


def check_network(settings: DialSection) -> list[Finding]:
    """Look at every step of the way to ``check.superlink``."""
    if not settings.superlink:
        return [
            Finding(step, Status.SKIPPED, "no check.superlink in the site's file")
            for step in _STEPS
        ]
    host, port = _split(settings.superlink)
    found: list[Finding] = []
    steps: list[Callable[[], list[Finding]]] = [
        lambda: [_name(host, port)],
        lambda: [_port(host, port, settings.timeout)],
        lambda: _tls(host, port, settings),
        lambda: [_clock(host, port, settings)],
    ]
    for step in steps:
        found += step()
        if found[-1].status is Status.FAILED:
            break
    done = {finding.check for finding in found}
    rest = [step for step in _STEPS if step not in done]
    return [*found, *(Finding(step, Status.SKIPPED, "the step before failed") for step in rest)]


def check_neighbours(start: Start, timeout: float) -> Finding:
    """Look whether the peers that this site asks can be reached now; not all need have begun."""
    addresses = {member.name: member.address for member in start.members}
    away = []
    for name in start.neighbours:
        if address := addresses[name]:
            host, port = _split(address)
            try:
                socket.create_connection((host, port), timeout).close()
            except OSError as error:
                away.append(f"{name} at {address} ({error.strerror or error})")
    there = len(start.neighbours) - len(away)
    detail = f"{there} of {len(start.neighbours)} answer"
    if away:
        return Finding(
            "neighbours", Status.WARNING, f"{detail}; not {', '.join(away)}",
            "they have not begun yet, or a firewall is between; let this machine reach them",
        )  # fmt: skip
    return Finding("neighbours", Status.OK, detail)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _name(host: str, port: int) -> Finding:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Finding(
            "name", Status.FAILED, f"{host} cannot be resolved: {error.strerror or error}",
            "ask the coordinator for the address, and let this machine use a DNS server that "
            "knows it",
        )  # fmt: skip
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return Finding("name", Status.OK, f"{host} is {', '.join(addresses[:4])}")


def _port(host: str, port: int, timeout: float) -> Finding:
    began = time.monotonic()
    try:
        socket.create_connection((host, port), timeout).close()
    except TimeoutError:
        return Finding(
            "port", Status.FAILED, f"nothing answers on port {port} within {timeout:g} s",
            "a firewall drops the packets: let this machine reach it, outgoing",
        )  # fmt: skip
    except ConnectionRefusedError:
        return Finding(
            "port", Status.FAILED, f"port {port} of {host} is closed",
            "the coordinator's SuperLink does not run, or listens on another port",
        )  # fmt: skip
    except OSError as error:
        return Finding(
            "port", Status.FAILED, f"port {port} cannot be reached: {error.strerror or error}",
            "look at this machine's network and firewall",
        )  # fmt: skip
    return Finding("port", Status.OK, f"open, {1000 * (time.monotonic() - began):.0f} ms")


def _tls(host: str, port: int, settings: DialSection) -> list[Finding]:
    try:
        context = _context(settings)
    except (OSError, ssl.SSLError):
        finding = f"{settings.authority} cannot be read as certificates"
        advice = "name the consortium's authority.pem in check.authority"
        return [Finding("tls", Status.FAILED, finding, advice)]
    try:
        with _connected(host, port, context, settings.timeout) as connection:
            version = connection.version()
            own = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
    except (OSError, ssl.SSLError, ValueError) as error:
        return [_why(error, host, port, settings)]
    return [
        Finding("tls", Status.OK, f"{version}, certificate of {_names(own)}"),
        dates(own, "the SuperLink's certificate", utc_now()),
    ]


def _why(error: Exception, host: str, port: int, settings: DialSection) -> Finding:
    """Say what a failed handshake means for whoever has to mend it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code, shown = error.verify_code, _shown(host, port, settings.timeout)
        if code in _NAME:
            what = f"the certificate is of {shown}, not of {host}"
            advice = "call the SuperLink by one of its names, or have it issued anew with this one"
        elif code in (_EXPIRED, _NOT_YET):
            what = f"the certificate of {shown} is {'expired' if code == _EXPIRED else 'too new'}"
            advice = "have the coordinator renew it, or set this machine's clock"
        elif code in _FOREIGN:
            what = f"the certificate of {shown} was issued by another authority"
            advice = (
                "compare the fingerprint of check.authority with the coordinator's by phone; a "
                "proxy that opens TLS connections must leave this one alone"
            )
        else:
            what, advice = clean(error.verify_message, 200), "send this to the coordinator"
        return Finding("tls", Status.FAILED, what, advice)
    plain = isinstance(error, ssl.SSLError) and error.reason in _PLAIN_ANSWERS
    if plain or _speaks_plainly(host, port, settings.timeout):
        return Finding(
            "tls", Status.FAILED, f"port {port} of {host} answers without TLS",
            "this is not the SuperLink, or it was started with --insecure; never join it so",
        )  # fmt: skip
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return Finding(
        "tls", Status.FAILED, f"the handshake failed: {clean(str(reason), 200)}",
        "see whether a proxy or another service listens there",
    )  # fmt: skip


def _speaks_plainly(host: str, port: int, timeout: float) -> bool:
    """Whether something answers a request that is not encrypted."""
    try:
        with socket.create_connection((host, port), timeout) as plain:
            plain.settimeout(min(timeout, 3.0))
            plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return plain.recv(5) == b"HTTP/"
    except OSError:
        return False


def _shown(host: str, port: int, timeout: float) -> str:
    """Return the names in whatever certificate is shown; nothing else is done with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connected(host, port, context, timeout) as connection:
            data = connection.getpeercert(binary_form=True) or b""
        return _names(x509.load_der_x509_certificate(data))
    except (OSError, ValueError):
        return "an unreadable name"


def _clock(host: str, port: int, settings: DialSection) -> Finding:
    connection = http.client.HTTPSConnection(
        host, port, timeout=settings.timeout, context=_context(settings)
    )
    try:
        asked = utc_now()
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("Date", "")
        middle = asked + (utc_now() - asked) / 2
        # It tells whole seconds, cut: half a second is the best guess at the rest.
        offset = (middle - parsedate_to_datetime(date)).total_seconds() - 0.5
    except (OSError, http.client.HTTPException, ValueError, TypeError):
        return Finding(
            "clock", Status.WARNING, "the coordinator does not tell the time",
            "make sure that this machine's clock is synchronised",
        )  # fmt: skip
    finally:
        connection.close()
    detail = f"{offset:+.1f} s from the coordinator's, to half a second"
    if abs(offset) > settings.max_clock_offset:
        return Finding(
            "clock", Status.FAILED, detail,
            "synchronise this machine's clock (chrony, timesyncd): SuperNodes are refused at 300 s",
        )  # fmt: skip
    return Finding("clock", Status.OK, detail)


def _context(settings: DialSection) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=settings.authority or None)


@contextmanager
def _connected(
    host: str, port: int, context: ssl.SSLContext, timeout: float
) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection((host, port), timeout) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        yield connection


def _names(certificate: x509.Certificate) -> str:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return clean(certificate.subject.rfc4514_string())
    return clean(", ".join(str(name.value) for name in found), 200) or "nobody"
