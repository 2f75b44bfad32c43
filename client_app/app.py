"""The Flower ClientApp: turns a message into a call on a site. Imports no torch by itself.

A node whose configuration names a ``site-address`` talks to that site's service, and this process
then holds no record and loads no torch; any other node has its sites in this process.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.failures import to_failure
from fedapp.config import RunConfig
from fedapp.errors import HandshakeError
from fedapp.exchange import Action, Instruction, Reply
from fedapp.wire import (
    content_to_describe,
    content_to_instruction,
    descriptions_to_content,
    reply_to_content,
)

if TYPE_CHECKING:
    from client_app.service.remote import RemoteSite
    from client_app.site import Site

app = ClientApp()

if "flwr.server.superlink.fleet.vce" in sys.modules:  # this process is a simulation
    from client_app.worker_pool import install

    install()


@app.query()
def describe(message: Message, context: Context) -> Message:
    """Answer with the description, or the failure, of every site this node hosts."""
    try:
        replies = _descriptions(content_to_describe(message.content), context)
    except Exception as error:  # no site of this node can be described
        name = _node(context)
        replies = [Reply(name, 0, Action.DESCRIBE, failure=to_failure(error, name, 0))]
    return Message(descriptions_to_content(replies), reply_to=message)


@app.query("initial")
def initial(message: Message, context: Context) -> Message:
    """Answer with the seeded initial adapter."""
    return _execute(message, context, Action.INITIAL)


@app.query("bases")
def bases(message: Message, context: Context) -> Message:
    """Answer with bases of what the received model's activations do not use."""
    return _execute(message, context, Action.BASES)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Evaluate the received adapter, train, evaluate, and answer with the update."""
    return _execute(message, context, Action.TRAIN)


@app.train("publish")
def publish(message: Message, context: Context) -> Message:
    """Train the site's own model, put it in the site's mailbox, and answer with metrics."""
    return _execute(message, context, Action.PUBLISH)


@app.train("mix")
def mix(message: Message, context: Context) -> Message:
    """Mix the site's model with its neighbours' and answer with metrics."""
    return _execute(message, context, Action.MIX)


@app.train("local_only")
def train_local_only(message: Message, context: Context) -> Message:
    """Train the site alone for the whole run's budget and answer with metrics."""
    return _execute(message, context, Action.LOCAL_ONLY)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received adapter and answer with metrics."""
    return _execute(message, context, Action.EVALUATE)


def _execute(message: Message, context: Context, action: Action) -> Message:
    """Execute the instruction of a message; the message's type, not its text, says the action."""
    site, round = _node(context), 0  # until the message is read
    try:
        instruction = content_to_instruction(message.content)
        site, round = instruction.site, instruction.round
        if instruction.action is not action:
            raise HandshakeError(
                f"a message for '{action}' holds an instruction to '{instruction.action}'"
            )
        if "partition-id" not in context.node_config:
            # Outside a simulation the coordinator may not name files on this machine.
            instruction = replace(instruction, progress_file="", state_folder="")
        if "state-folder" in context.node_config:
            own = str(context.node_config["state-folder"])
            instruction = replace(instruction, state_folder=own)
        reply = _site(instruction, context).execute(instruction)
    except Exception as error:
        reply = Reply(site, round, action, failure=to_failure(error, site, round))
    return Message(reply_to_content(reply), reply_to=message)


def _descriptions(config: RunConfig, context: Context) -> list[Reply]:
    remote = _remote(context)
    if remote is not None:
        return [remote.describe(config, _node(context))]
    from client_app.hosting import hosted_sites  # loads torch, so only here

    return [
        site.execute(Instruction(Action.DESCRIBE, name, config))
        for name, site in hosted_sites(config, context.node_config).items()
    ]


def _remote(context: Context) -> RemoteSite | None:
    if "site-address" not in context.node_config:
        return None
    from client_app.service.remote import RemoteSite  # a simulation has no use for gRPC

    _settle()
    return RemoteSite.of_node(context.node_config)


@cache
def _settle() -> None:
    """Spare this process, which Flower starts for one message, a search of its modules for garbage.

    What is loaded by now stays to the end. Python would go through all of it once more as it ends,
    which takes a fifth of the process's whole time.
    """
    gc.freeze()


def _site(instruction: Instruction, context: Context) -> Site:
    """Return the site of an instruction: behind its service's socket, or in this process."""
    remote = _remote(context)
    if remote is not None:
        return remote
    from client_app.hosting import hosted_sites

    sites = hosted_sites(instruction.config, context.node_config)
    if instruction.site not in sites:
        raise HandshakeError(f"this node does not host the site; it hosts {', '.join(sites)}")
    return sites[instruction.site]


def _node(context: Context) -> str:
    """The node as an operator knows it, for a message that reaches no site."""
    place = context.node_config.get("partition-id", "unknown")
    return str(context.node_config.get("site", f"node {place}"))
