"""`fedapp site dry-run`: made-up records through the whole path, from socket to update.

The service is started as it will run, in another process with a folder of its own, and is asked
what a coordinator asks in one round: Flower's messages go to the ClientApp, which asks the service.
Nothing of the site's own records is read.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import grpc

from client_app.preflight.replies import checked
from client_app.preflight.synthetic import write_records
from client_app.service.calls import HEALTH, target
from client_app.service.proto import site_pb2
from fedapp.config import RunConfig
from fedapp.config_section import Section
from fedapp.config_site import SiteFile
from fedapp.errors import ConfigError, SiteUnavailable
from fedapp.exchange import Action, Instruction, Reply
from fedapp.hash_chain import read_chain
from fedapp.registry import METHODS

Say = Callable[[str], None]

_START = 180.0  # seconds until the service has loaded what every task needs
_RUN = "0" * 32


def dry_run(config: SiteFile, run: RunConfig, say: Say) -> dict[str, Any]:
    """Run one round on made-up records and return what it took and what would leave.

    Raises
    ------
    FedappError
        With the sentence of the step that failed.
    """
    if METHODS[run.method].peer_rule:
        raise ConfigError(
            f"method {run.method} has no coordinator, whose round a dry run rehearses; rehearse "
            "the same model with another method, or start `fedapp peer` beside others"
        )
    with tempfile.TemporaryDirectory(prefix="fedapp-dry-run-") as name:
        folder = Path(name)
        data = write_records(folder / "records.jsonl", run, config.name)
        path = folder / "site.toml"
        path.write_text(site_file(config, data), encoding="utf-8")
        began = time.monotonic()
        with running_service(path, folder / "s") as socket:
            say(f"the service began within {time.monotonic() - began:.1f} s")
            node = {"site": config.name, "site-address": f"unix:{socket}"}
            timings = _round(node, config.name, run, say)
        events = [link.body for link in read_chain(folder / "state" / "audit.jsonl")]
    sent = [event for event in events if event["event"] == "answered" and event["payloads"]]
    left: dict[str, Any] = sent[-1] if sent else {}
    return {**timings, "leaves": {k: left[k] for k in ("payloads", "metrics", "numbers") if left}}


def _round(node: Mapping[str, str], name: str, run: RunConfig, say: Say) -> dict[str, Any]:
    found: dict[str, Any] = {}
    payloads: dict[str, Any] = {}
    actions = [Action.DESCRIBE, Action.INITIAL, Action.BASES, Action.TRAIN, Action.EVALUATE]
    if not METHODS[run.method].bases:
        actions.remove(Action.BASES)
    for action in actions:
        began = time.monotonic()
        reply = checked(_ask(Instruction(action, name, run, 1, payloads=payloads, run=_RUN), node))
        if action is Action.INITIAL:
            payloads = dict(reply.payloads)
        found[f"{action.value}_seconds"] = time.monotonic() - began
        size = sum(packed.nbytes for packed in reply.payloads.values())
        found[f"{action.value}_bytes"] = size
        say(f"{action.value}: {time.monotonic() - began:.2f} s, {size:,} bytes of payload left")
    return found


def _ask(asked: Instruction, node: Mapping[str, str]) -> Reply:
    """Send the ClientApp the message that a SuperNode would, and read what it answers."""
    # Loaded here: Flower takes a second to import.
    from flwr.app import Context, Message, Metadata, RecordDict

    from client_app.app import app
    from fedapp import wire

    describing = asked.action is Action.DESCRIBE
    content = (
        wire.describe_to_content(asked.config) if describing else wire.instruction_to_content(asked)
    )
    about = Metadata(
        run_id=1, message_id="dry-run", src_node_id=1, dst_node_id=2, reply_to_message_id="",
        group_id="", created_at=time.time(), ttl=3600.0,
        message_type=wire.MESSAGE_TYPES[asked.action],
    )  # fmt: skip
    message = Message(metadata=about, content=content)  # type: ignore[call-overload]
    with redirect_stdout(sys.stderr):  # a ClientApp tells its SuperNode's terminal of its progress
        answer = app(message, Context(1, 2, dict(node), RecordDict(), {})).content
    return wire.content_to_descriptions(answer)[0] if describing else wire.content_to_reply(answer)


@contextmanager
def running_service(path: Path, socket: Path) -> Iterator[Path]:
    """Run ``fedapp site serve`` until the end of the block."""
    command = [
        sys.executable, "-c", "from fedapp.cli import app; app(prog_name='fedapp')",
        "site", "serve", "--config", str(path),
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait(process, socket, output)
            yield socket
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], socket: Path, output: Any) -> None:
    end = time.monotonic() + _START
    with grpc.insecure_channel(target(socket)) as channel:
        while time.monotonic() < end:
            if process.poll() is not None:
                output.seek(0)
                last = (output.read().strip().splitlines() or ["it said nothing"])[-1]
                raise SiteUnavailable(f"the service ended at once: {last}")
            try:
                data = channel.unary_unary(HEALTH)(b"", timeout=2)
            except grpc.RpcError:
                time.sleep(0.2)
                continue
            if site_pb2.HealthReply.FromString(data).ready:
                return
            time.sleep(0.2)
    raise SiteUnavailable(f"the service was not ready within {_START:g} s; see the machine's load")


def site_file(config: SiteFile, data: dict[str, Any]) -> str:
    """Return the file of a service with this site's models, rules and limits, and other records.

    Hours and coordinators are for those who ask, and nobody does.
    """
    from fedapp.cli import toml

    text = toml.lines({"name": config.name, "socket": "s", "state": "state"})
    text += "[data]\n" + toml.lines(data)
    models = {toml.literal(name): place for name, place in config.models.items()}
    return (
        f"{text}[models]\n{toml.lines(models)}"
        + _section("policy", config.policy, without={"coordinators", "hours", "time_zone"})
        + _section("limits", config.limits)
    )


def _section(name: str, section: Section, without: Collection[str] = ()) -> str:
    from fedapp.cli import toml

    values = section.model_dump(by_alias=True, exclude=set(without))
    return f"[{name}]\n" + "".join(
        f"{key} = [{', '.join(map(toml.literal, value))}]\n"
        if isinstance(value, tuple)
        else toml.lines({key: value})
        for key, value in values.items()
    )
