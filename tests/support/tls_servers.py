"""A coordinator's port in this process: with or without TLS, with any certificate and any clock."""

from __future__ import annotations

import ipaddress
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


class Issuer:
    """An authority."""

    def __init__(self, name: str = "consortium") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self.certificate = (
            self._builder(self.name, self.key, NOW - 900 * DAY, NOW + 900 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def write(self, folder: Path) -> Path:
        """Write the authority's certificate."""
        path = folder / "authority.pem"
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(
        self,
        folder: Path,
        names: Sequence[str] = ("localhost", "127.0.0.1"),
        first: datetime = NOW - DAY,
        last: datetime = NOW + 300 * DAY,
    ) -> Path:
        """Write a server's certificate and key into one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternative: list[x509.GeneralName] = []
        for name in names:
            try:
                alternative.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                alternative.append(x509.DNSName(name))
        certificate = (
            self._builder(x509.Name([]), key, first, last)
            .add_extension(x509.SubjectAlternativeName(alternative), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        path = folder / "server.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return path

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, first: datetime, last: datetime
    ) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            self.name, name, key.public_key(), x509.random_serial_number(), first, last
        ).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
            critical=False,
        )


@contextmanager
def listening(certificate: Path | None, clock: timedelta = timedelta()) -> Iterator[int]:
    """Serve on a free port of this machine; ``clock``: how far the server's clock is ahead."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", format_datetime(datetime.now(UTC) + clock, usegmt=True))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    class Quiet(HTTPServer):
        def handle_error(self, *_: object) -> None: ...

    server = Quiet(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
