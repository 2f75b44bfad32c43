from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ("version", "run", "round", "origin", "layout_digest", "payload_digest", "size", "chunk", "codec", "nonce", "created", "expiry")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    round: int
    origin: str
    layout_digest: bytes
    payload_digest: bytes
    size: int
    chunk: int
    codec: str
    nonce: bytes
    created: int
    expiry: int
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., origin: _Optional[str] = ..., layout_digest: _Optional[bytes] = ..., payload_digest: _Optional[bytes] = ..., size: _Optional[int] = ..., chunk: _Optional[int] = ..., codec: _Optional[str] = ..., nonce: _Optional[bytes] = ..., created: _Optional[int] = ..., expiry: _Optional[int] = ...) -> None: ...

class SignedEnvelope(_message.Message):
    __slots__ = ("envelope", "signature", "certificate")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    envelope: bytes
    signature: bytes
    certificate: bytes
    def __init__(self, envelope: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class DigestRequest(_message.Message):
    __slots__ = ("run", "round", "origins", "have", "wait", "address")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    origins: _containers.RepeatedScalarFieldContainer[str]
    have: _containers.RepeatedScalarFieldContainer[bytes]
    wait: int
    address: str
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., origins: _Optional[_Iterable[str]] = ..., have: _Optional[_Iterable[bytes]] = ..., wait: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class DigestReply(_message.Message):
    __slots__ = ("entries", "clock")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    clock: int
    def __init__(self, entries: _Optional[_Iterable[bytes]] = ..., clock: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("run", "envelope", "offset")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    run: str
    envelope: bytes
    offset: int
    def __init__(self, run: _Optional[str] = ..., envelope: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...
