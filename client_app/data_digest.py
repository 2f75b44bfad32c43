"""A site's own mark of its records, by which a resumed run can tell that they are the same."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import tempfile
from pathlib import Path

from client_app.data import SiteData
from client_app.data.checks import content_digest
from client_app.data.schemas import schema_class
from fedapp.cache import cache_folder

log = logging.getLogger(__name__)

KEY_FILE = "data-digest.key"
_KEY_BYTES = 32


def data_digest(data: SiteData, keys: Path | None = None) -> str:
    """Return a keyed SHA-256 (HMAC) over all that the site's records say, in any order.

    It does not depend on how the records are dealt to the splits. Who has only the digest cannot
    test a guess about the records: the key is random and never leaves this machine.

    Parameters
    ----------
    data : SiteData
    keys : Path, optional
        Folder of the key, private to the site; by default the cache of this account.

    Returns
    -------
    str
        64 hexadecimal digits; empty if this machine cannot keep a key, since a digest with
        another key at every start would say that the records have changed.
    """
    try:
        key = _key((keys or cache_folder()) / KEY_FILE)
    except OSError as error:
        log.warning("no digest of the records: the key cannot be kept (%s)", error)
        return ""
    schema = schema_class(data.task)
    marks = sorted(
        b"".join(map(content_digest, schema.marks(record, data.label_map)))
        for records in data.splits.values()
        for record in records
    )
    return hmac.new(key, b"".join(marks), hashlib.sha256).hexdigest()


def _key(path: Path) -> bytes:
    """Read the key, made at first use; of several processes that make one the first wins."""
    if not path.exists():
        # mkstemp's files are for their owner alone.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(secrets.token_bytes(_KEY_BYTES))
                stream.flush()
                os.fsync(stream.fileno())
            _link(temporary, path)
        finally:
            os.unlink(temporary)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise OSError(f"{path} does not hold {_KEY_BYTES} bytes; delete it")
    return key


def _link(temporary: str, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename it never replaces a key that is in use
    except FileExistsError:
        return
