"""How long certificates are valid."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from fedapp.errors import IdentityError
from fedapp.preflight.finding import Finding, Status, attempt
from fedapp.small_file import read_small

SOON = timedelta(days=30)
_MAX_FILE = 2**20  # bytes


def check_files(paths: Iterable[str], now: datetime) -> list[Finding]:
    """Look at the dates of certificate files."""
    return [_check_file(Path(path), now) for path in paths]


def dates(certificate: x509.Certificate, what: str, now: datetime) -> Finding:
    """Say whether ``now`` is within a certificate's dates, and for how long yet."""
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    span = f"{what}: valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    if now < first:
        return Finding(
            "certificates", Status.FAILED, f"{span}, which is later",
            "set this machine's clock, or wait",
        )  # fmt: skip
    if now > last:
        return Finding("certificates", Status.FAILED, f"{span}, expired", "have it renewed")
    if last - now < SOON:
        left = (last - now).days
        return Finding(
            "certificates", Status.WARNING, f"{span}, {left} days left", "have it renewed soon"
        )
    return Finding("certificates", Status.OK, span)


def _check_file(path: Path, now: datetime) -> Finding:
    def look() -> Finding:
        data = read_small(path, _MAX_FILE, "certificate", IdentityError)
        try:
            certificate = x509.load_pem_x509_certificate(data)
        except ValueError:
            raise IdentityError(f"{path} is no certificate in PEM; name the right file") from None
        return dates(certificate, path.name, now)

    return attempt("certificates", look)


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)
