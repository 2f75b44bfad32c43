"""An answer as it travels and as it is kept: a header and the bytes of its payloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from client_app.service.payloads import Bytes, arrays
from fedapp.exchange import Reply
from fedapp.headers import write_reply


@dataclass(frozen=True)
class Answer:
    """A reply's header, see `fedapp.headers`, and its payloads in order."""

    header: str
    payloads: Mapping[str, Bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, reply: Reply) -> Answer:
        """Return a reply in this form."""
        return cls(write_reply(reply), arrays(reply.payloads))
