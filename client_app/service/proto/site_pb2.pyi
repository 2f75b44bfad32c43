from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Caller(_message.Message):
    __slots__ = ("version", "app_version", "coordinator")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    APP_VERSION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    version: int
    app_version: str
    coordinator: str
    def __init__(self, version: _Optional[int] = ..., app_version: _Optional[str] = ..., coordinator: _Optional[str] = ...) -> None: ...

class Size(_message.Message):
    __slots__ = ("name", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("caller", "header")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    header: str
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., header: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("caller", "header", "payloads")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    header: str
    payloads: _containers.RepeatedCompositeFieldContainer[Size]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., header: _Optional[str] = ..., payloads: _Optional[_Iterable[_Union[Size, _Mapping]]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("start", "chunk")
    START_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    start: Start
    chunk: bytes
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("send",)
    SEND_FIELD_NUMBER: _ClassVar[int]
    send: bool
    def __init__(self, send: _Optional[bool] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("step", "steps", "loss")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    step: int
    steps: int
    loss: float
    def __init__(self, step: _Optional[int] = ..., steps: _Optional[int] = ..., loss: _Optional[float] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("header", "payloads")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    header: str
    payloads: _containers.RepeatedCompositeFieldContainer[Size]
    def __init__(self, header: _Optional[str] = ..., payloads: _Optional[_Iterable[_Union[Size, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("accepted", "progress", "answer", "chunk")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    progress: Progress
    answer: Answer
    chunk: bytes
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: str
    def __init__(self, task: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("called_off", "ending")
    CALLED_OFF_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    called_off: _containers.RepeatedScalarFieldContainer[str]
    ending: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, called_off: _Optional[_Iterable[str]] = ..., ending: _Optional[_Iterable[str]] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("site", "version", "ready", "tasks", "doing", "silent", "uptime", "peer", "peer_failed")
    SITE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_FAILED_FIELD_NUMBER: _ClassVar[int]
    site: str
    version: str
    ready: bool
    tasks: int
    doing: str
    silent: float
    uptime: float
    peer: str
    peer_failed: bool
    def __init__(self, site: _Optional[str] = ..., version: _Optional[str] = ..., ready: _Optional[bool] = ..., tasks: _Optional[int] = ..., doing: _Optional[str] = ..., silent: _Optional[float] = ..., uptime: _Optional[float] = ..., peer: _Optional[str] = ..., peer_failed: _Optional[bool] = ...) -> None: ...
