"""A site's service in this process, with whatever work a test wants, and a call to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import fedapp
from client_app.service.answer import Answer
from client_app.service.calls import OPTIONS, VERSION, target
from client_app.service.desk import Desk, Task
from client_app.service.kept import KeptResult
from client_app.service.proto import site_pb2
from client_app.service.serve import open_state
from client_app.service.server import SiteServer
from client_app.service.work import SiteWork
from fedapp.adapter import Adapter, LoraPair
from fedapp.audit import AuditLog
from fedapp.cli import toml
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.config_site import SiteFile, load_site_file
from fedapp.exchange import Action, Instruction, Reply
from fedapp.hash_chain import read_chain

NAME = "Bern"
CONFIG = RunConfig.from_flat(
    {
        "method": "fedavg",
        "model.source": "embedded:tiny-encoder",
        "model.max-length": 16,
        "lora.rank": 2,
        "data.labels": "ill,well",
        "train.threads": 1,
        "train.batch-size": 4,
        "train.local-epochs": 1,
        "federation.round-timeout": 60.0,
    }
)

Work = Callable[[Task], Answer]


def write_site(folder: Path, policy: str = "", more: str = "", records: int = 30) -> Path:
    """Write a site's file and records, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{NAME} note {i},{'ill' if i % 2 else 'well'},{NAME}" for i in range(records)]
    (folder / "records.csv").write_text("\n".join(["text,label,site", *rows]) + "\n")
    # A short path of its own: a socket's has 107 bytes, and a test's folder may have more.
    text = toml.lines({"name": NAME}) + more
    text += '[data]\nsource = "records.csv"\n[policy]\n' + policy
    (folder / "site.toml").write_text(text)
    return folder / "site.toml"


def adapter(seed: int = 0) -> Adapter:
    """A small adapter that no model has."""
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    return Adapter({"layer": LoraPair(some(6, 2), some(2, 5), 2.0)}, {"head": some(2, 6)})


def instruction(action: Action = Action.TRAIN, **fields: Any) -> Instruction:
    """An instruction for the site."""
    given = {"config": CONFIG, "round": 1, "payloads": {"adapter": pack(adapter())}, **fields}
    return Instruction(action, NAME, run="0a" * 16, **given)


def echo(task: Task) -> Answer:
    """Answer with what came."""
    asked = task.instruction
    return Answer.of(
        Reply(asked.site, asked.round, asked.action, payloads=dict(asked.payloads), weight=1.0)
    )


class Service:
    """A running service; use it with ``with``. ``work`` None is the real one."""

    def __init__(self, path: Path, work: Work | None = echo, peer: Any = None) -> None:
        self.config: SiteFile = load_site_file(path)
        self.peer = peer
        self._given = work
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.error: BaseException | None = None

    def __enter__(self) -> Service:
        self._thread.start()
        assert self._ready.wait(60)
        if self.error is not None:
            self._thread.join(10)
            raise self.error
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def address(self) -> str:
        return f"unix:{self.config.socket}"

    def events(self) -> list[dict[str, Any]]:
        """What the audit log says."""
        return [link.body for link in read_chain(self.config.audit)]

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(target(self.config.socket), options=OPTIONS)

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            open_state(self.config)
            self.audit, self.kept = (
                AuditLog(self.config.audit),
                KeptResult(self.config.state, self.config.policy),
            )
            self.work = SiteWork(self.config, self.audit, self.kept)
            self.desk = Desk(self._given or self.work)
            server = SiteServer(self.config, self.desk, self.audit, self.kept, self.peer)
            await server.start()
            await server.ready()
        except BaseException as error:
            self.error = error
            return
        finally:
            self._ready.set()
        await self._stop.wait()
        await server.close()
        await self.desk.close(20.0)
        self.audit.close()


def start(header: str, sizes: dict[str, int], version: int = VERSION, **caller: str) -> bytes:
    """The first message of an Execute."""
    who = {"app_version": fedapp.__version__, **caller}
    return bytes(
        site_pb2.Request(
            start=site_pb2.Start(
                caller=site_pb2.Caller(version=version, **who),
                header=header,
                payloads=[site_pb2.Size(name=n, bytes=b) for n, b in sizes.items()],
            )
        ).SerializeToString()
    )


def chunk(data: bytes) -> bytes:
    """A later message of an Execute."""
    return bytes(site_pb2.Request(chunk=data).SerializeToString())
