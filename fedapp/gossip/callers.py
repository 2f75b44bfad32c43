"""Who calls: a member of the consortium, known by its certificate alone."""

from __future__ import annotations

import ssl
import time
from collections.abc import Collection
from typing import Any, NoReturn

import grpc

from fedapp.errors import IdentityError
from fedapp.gossip.trust import Trust
from fedapp.text import clean

Context = Any  # grpc.aio.ServicerContext; grpc has no types


async def caller(context: Context, trust: Trust, others: Collection[str]) -> str:
    """Return the name in the caller's certificate, or end the call if it is none of ``others``.

    TLS has looked at the certificate when the connection began; it may have expired since.
    """
    try:
        (pem,) = context.auth_context()["x509_pem_cert"]
        der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
        name = trust.verify(der, time.time()).name
    except (KeyError, ValueError):
        await abort(context, grpc.StatusCode.UNAUTHENTICATED, "a certificate is needed")
    except IdentityError as error:
        await abort(context, grpc.StatusCode.PERMISSION_DENIED, error.message)
    if name not in others:
        await abort(
            context,
            grpc.StatusCode.PERMISSION_DENIED,
            f"'{clean(name)}' is not another member of the consortium of this node",
        )
    return name


async def abort(context: Context, code: grpc.StatusCode, sentence: str) -> NoReturn:
    """End a call with a status and a sentence."""
    # Status messages travel in a header.
    await context.abort(code, sentence.encode("ascii", "backslashreplace").decode())
    raise AssertionError("abort raises")
