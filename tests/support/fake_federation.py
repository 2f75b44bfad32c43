"""A federation without Ray: a Grid in this process whose sites are small numpy models.

Every message passes through the real wire code, including Flower's serialisation of messages, so
that only transport and training are make-believe. Faults are injected per site and round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import fedapp
from client_app.feedback import encode_payloads
from client_app.state import Kept, site_states
from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import Packed, pack
from fedapp.config import RunConfig
from fedapp.default_settings import defaults_digest
from fedapp.exchange import Action, Failure, Instruction, Reply, SiteDescription
from fedapp.seeds import derive_seed
from fedapp.subspaces import random_basis
from fedapp.wire import (
    content_to_describe,
    content_to_instruction,
    descriptions_to_content,
    reply_to_content,
)

HOSPITALS = {"Cleveland": 60, "Hungary": 59, "Switzerland": 25, "VA Long Beach": 40}
ROWS, COLUMNS, CLASSES = 6, 5, 2

Fault = Callable[[Instruction, Reply], "Reply | Message | Error | None"]
"""Turns an honest reply into what the grid delivers: a reply, an error, or None for silence."""


def initial_adapter(config: RunConfig) -> Adapter:
    """The seeded first adapter: A random, B zero, a small head."""
    rng = np.random.default_rng(derive_seed(config.seed, "initial"))
    rank = config.lora.rank

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    pairs = {
        f"layer.{number}.{target}": LoraPair(
            b_mr=np.zeros((ROWS, rank), np.float32),
            a_rn=normal(rank, COLUMNS),
            scaling=config.lora.alpha / rank,
        )
        for number in range(2)
        for target in config.lora.targets
    }
    return Adapter(pairs, {"classifier.weight": normal(CLASSES, ROWS)})


@dataclass
class FakeSite:
    """A site whose training is a seeded step that depends on what it received."""

    name: str
    examples: int
    changes: dict[str, Any] = field(default_factory=dict)  # of the description
    trained: list[int] = field(default_factory=list)  # rounds

    def execute(self, instruction: Instruction) -> Reply:
        """Answer an instruction honestly."""
        reply = Reply(instruction.site, instruction.round, instruction.action)
        config = instruction.config
        if instruction.action is Action.DESCRIBE:
            return replace(reply, description=self._describe(config))
        if instruction.action is Action.INITIAL:
            return replace(reply, payloads={"adapter": pack(initial_adapter(config))})
        received = instruction.payloads["adapter"].unpack()
        if instruction.action is Action.BASES:
            numbers = {"seconds": 0.1, "basis_tokens": 64.0, "insensitive_share": 0.5}
            return replace(
                reply,
                payloads={"bases": self._bases(instruction)},
                metrics=self._metrics(instruction, "received", received),
                numbers=numbers,
            )
        numbers = {"seconds": 0.25, "training_seconds": 0.2, "train_loss": 0.5, "steps": 3.0}
        if instruction.action is Action.EVALUATE:
            return replace(reply, metrics=self._metrics(instruction, "received", received))
        if instruction.action is Action.LOCAL_ONLY:
            trained = self._train(instruction, received)
            return replace(
                reply, metrics=self._metrics(instruction, "local-only", trained), numbers=numbers
            )
        self.trained.append(instruction.round)
        trained = self._train(instruction, received)
        payloads, more = self._send(instruction, trained, received)
        return replace(
            reply,
            payloads=payloads,
            metrics={
                **self._metrics(instruction, "received", received),
                **self._metrics(instruction, "personal", trained, instruction.personal_splits),
            },
            weight=float(self.examples),
            numbers={**numbers, **more},
        )

    def _send(
        self, instruction: Instruction, trained: Adapter, received: Adapter
    ) -> tuple[dict[str, Packed], dict[str, float]]:
        """Encode as a real site does, with error feedback if the site has a folder."""
        federation = instruction.config.federation
        states, kept = None, Kept()
        if federation.codec != "fp32" and federation.error_feedback:
            states = site_states(instruction, received.layout_digest())
        if states:
            kept = states.load(instruction.round)
        payloads, left = encode_payloads(
            {"adapter": trained},
            {"adapter": received},
            federation.codec,
            kept.state if states else None,
            new_basis=instruction.config.method != "fedavg",
        )
        if states:
            states.save(instruction.round, left, federation.keep_checkpoints)
        return payloads, {"state_round": float(kept.round)} if states else {}

    def _bases(self, instruction: Instruction) -> Packed:
        config = instruction.config
        rows = config.dysco.rows or config.lora.rank
        seeds = {
            name: derive_seed(config.seed, "basis", self.name, instruction.round, name)
            for name in instruction.payloads["adapter"].layout.pairs
        }
        return pack(
            Adapter(
                {},
                {
                    name: random_basis(COLUMNS, min(rows, COLUMNS), seed).astype(np.float32)
                    for name, seed in seeds.items()
                },
            )
        )

    def _train(self, instruction: Instruction, received: Adapter) -> Adapter:
        seed = derive_seed(instruction.config.seed, "train", self.name, instruction.round)
        rng = np.random.default_rng(seed)
        frozen = instruction.config.method in ("fedsvd", "dysco", "random-boost")

        def step(name: str, array: np.ndarray) -> np.ndarray:
            if frozen and name.endswith(".lora_A"):
                return array
            noise = rng.normal(size=array.shape).astype(np.float32)
            return (0.9 * array + 0.1 * noise).astype(np.float32)

        return received.map(step)

    def _metrics(
        self,
        instruction: Instruction,
        phase: str,
        adapter: Adapter,
        more_splits: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        norm = float(np.linalg.norm(adapter.tensors["classifier.weight"]))
        accuracy = 0.5 + 0.4 * abs(np.sin(norm + self.examples))
        return {
            f"{phase}/{split}": {
                "accuracy": accuracy,
                "loss": 1.0 - accuracy,
                "auc": accuracy,
                "f1": accuracy,
                "examples": float(self.examples // 5),
            }
            for split in dict.fromkeys((*instruction.splits, *more_splits))
        }

    def _describe(self, config: RunConfig) -> dict[str, Any]:
        initial = initial_adapter(config)
        description = SiteDescription(
            site=self.name,
            package_version=fedapp.__version__,
            defaults_digest=defaults_digest(),
            base_model=config.model.source,
            base_model_digest="b" * 64,
            layout_digest=initial.layout_digest(),
            initial_digest=initial.digest(),
            rank=config.lora.rank,
            alpha=config.lora.alpha,
            targets=list(config.lora.targets),
            heads=["classifier"],
            dtype="fp32",
            task=config.model.task,
            label_map=["healthy", "ill"],
            examples={"train": self.examples, "validation": 10, "test": 10},
            device="cpu",
            threads=1,
            torch_version="2.13.0+cpu",
            clock=time.time(),
            peft_config={
                "peft_type": "LORA",
                "task_type": "SEQ_CLS",
                "base_model_name_or_path": "fake/model",
                "r": config.lora.rank,
                "lora_alpha": config.lora.alpha,
                "target_modules": list(config.lora.targets),
                "modules_to_save": ["classifier"],
            },
            notes=[],
        ).model_dump()
        return {**description, **self.changes}


class FakeGrid(Grid):
    """Delivers messages to `FakeSite` objects and their replies back.

    Parameters
    ----------
    sites : dict of str to int
        Training examples by site name.
    nodes : int, optional
        Number of nodes; node ``i`` of ``n`` hosts every ``n``-th site by name. Default: one each.
    order : callable, optional
        Reorders the replies of one pull.
    state : Path, optional
        Where the sites keep what they need between rounds; by default they have no such place.
    """

    def __init__(
        self,
        sites: dict[str, int] | None = None,
        nodes: int = 0,
        order: Callable[[list[Message]], list[Message]] | None = None,
        state: Path | None = None,
    ) -> None:
        sites = HOSPITALS if sites is None else sites
        self.sites = {name: FakeSite(name, examples) for name, examples in sites.items()}
        count = nodes or len(sites)
        # Ids like Flower's: large, and in no relation to the names.
        self.hosted = {
            derive_seed(7, "node", index): sorted(sites)[index::count] for index in range(count)
        }
        self.state = state
        self.faults: dict[tuple[str, Action, int], list[Fault]] = {}
        self.refused: set[tuple[str, Action, int]] = set()  # what Flower does not take
        self.sent: list[Instruction] = []
        self.extra: list[Message] = []  # delivered at the next pull, asked for or not
        self.before_push: Callable[[list[Message]], None] = lambda messages: None
        self.before_pull: Callable[[], None] = lambda: None
        # What a Flower process knows of itself, and puts in every message.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 11, 1
        self._order = order or (lambda messages: messages)
        self._ready: list[Message] = []
        self._count = 0

    def inject(
        self,
        site: str,
        fault: Fault,
        *,
        round: int = 1,
        action: Action = Action.TRAIN,
        times: int = 1,
    ) -> None:
        """Let ``fault`` change the next ``times`` replies of a site in a round."""
        self.faults.setdefault((site, action, round), []).extend([fault] * times)

    def trained(self) -> list[tuple[int, str]]:
        """(round, site) of every training instruction, in the order of sending."""
        return [(i.round, i.site) for i in self.sent if i.action is Action.TRAIN]

    # ---- Grid -------------------------------------------------------------------------------

    def get_node_ids(self) -> Iterable[int]:
        return list(self.hosted)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        batch = list(messages)
        self.before_push(batch)
        ids = []
        for message in batch:
            self._count += 1
            message.metadata.__dict__["_message_id"] = f"m{self._count}"
            if self.refused and self._refuses(message):
                continue
            ids.append(message.metadata.message_id)
            reply = self._deliver(message)
            if reply is not None:
                self._ready.append(reply)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.before_pull()
        wanted = set(message_ids)
        found = [m for m in self._ready if m.metadata.reply_to_message_id in wanted]
        self._ready = [m for m in self._ready if m not in found]
        extra, self.extra = self.extra, []
        return self._order([*found, *extra])

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        raise AssertionError("the round loop has a deadline of its own")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated")

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def _refuses(self, message: Message) -> bool:
        if message.metadata.message_type == "query":
            hosted = self.hosted[message.metadata.dst_node_id]
            return any((site, Action.DESCRIBE, 0) in self.refused for site in hosted)
        asked = content_to_instruction(message.content)
        return (asked.site, asked.action, asked.round) in self.refused

    # ---- the far side -----------------------------------------------------------------------

    def _deliver(self, message: Message) -> Message | None:
        content = _through_flower(message.content)
        if message.metadata.message_type == "query":
            config = content_to_describe(content)
            replies = []
            for name in self.hosted[message.metadata.dst_node_id]:
                reply = self._answer(Instruction(Action.DESCRIBE, name, config))
                if isinstance(reply, Error):
                    return Message(reply, reply_to=message)
                if isinstance(reply, Reply):
                    replies.append(reply)
            return Message(descriptions_to_content(replies), reply_to=message) if replies else None
        instruction = content_to_instruction(content)
        self.sent.append(instruction)
        reply = self._answer(instruction)
        if reply is None:
            return None
        if isinstance(reply, Message):
            return reply
        if isinstance(reply, Error):
            return Message(reply, reply_to=message)
        return Message(_through_flower(reply_to_content(reply)), reply_to=message)

    def _answer(self, instruction: Instruction) -> Reply | Message | Error | None:
        instruction = replace(instruction, state_folder=str(self.state or ""))
        reply = self.sites[instruction.site].execute(instruction)
        key = (instruction.site, instruction.action, instruction.round)
        queue = self.faults.get(key)
        return queue.pop(0)(instruction, reply) if queue else reply


def _through_flower(content: RecordDict) -> RecordDict:
    """Serialise and restore a content as Flower does between two processes."""
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

    return recorddict_from_proto(recorddict_to_proto(content))


# ---- faults ---------------------------------------------------------------------------------


def silent(instruction: Instruction, reply: Reply) -> None:
    """Never answer."""


def flower_error(instruction: Instruction, reply: Reply) -> Error:
    """The client app died; Flower reports it."""
    return Error(code=8, reason="Traceback: secret text\nRuntimeError: the client app crashed")


def worker_dies(instruction: Instruction, reply: Reply) -> Error:
    """The simulation's worker process died, as Flower tells it."""
    return Error(code=0, reason="<class 'client_app.worker_pool.WorkerDied'>:<'it was killed'>")


def fails(kind: str, message: str) -> Fault:
    """The site reports a failure."""

    def fault(instruction: Instruction, reply: Reply) -> Reply:
        return replace(reply, payloads={}, metrics={}, weight=0.0, failure=Failure(kind, message))

    return fault


def with_weight(weight: float) -> Fault:
    """Claim another number of examples."""
    return lambda instruction, reply: replace(reply, weight=weight)


def with_metrics(**changes: float) -> Fault:
    """Report other metrics in every table."""

    def fault(instruction: Instruction, reply: Reply) -> Reply:
        tables = {key: {**table, **changes} for key, table in reply.metrics.items()}
        return replace(reply, metrics=tables)

    return fault


def with_numbers(**changes: float) -> Fault:
    """Report other numbers beside the metrics."""
    return lambda instruction, reply: replace(reply, numbers={**reply.numbers, **changes})


def with_round(round: int) -> Fault:
    """Claim another round."""
    return lambda instruction, reply: replace(reply, round=round)


def as_site(name: str) -> Fault:
    """Claim to be another site."""
    return lambda instruction, reply: replace(reply, site=name)


def changed(change: Callable[[Adapter], Adapter]) -> Fault:
    """Send another adapter, correctly packed."""

    def fault(instruction: Instruction, reply: Reply) -> Reply:
        adapter = change(reply.payloads["adapter"].unpack())
        return replace(reply, payloads={"adapter": pack(adapter)})

    return fault


def poisoned(value: float) -> Fault:
    """Put ``value`` into one place of one array."""

    def poison(name: str, array: np.ndarray) -> np.ndarray:
        array = array.copy()
        if name == "layer.1.query.lora_B":
            array[0, 0] = value
        return array

    return changed(lambda adapter: adapter.map(poison))


def reranked(adapter: Adapter) -> Adapter:
    """Drop one rank of every pair."""
    return Adapter(
        {
            name: LoraPair(pair.b_mr[:, 1:].copy(), pair.a_rn[1:].copy(), pair.scaling)
            for name, pair in adapter.pairs.items()
        },
        adapter.tensors,
    )


def reshaped(adapter: Adapter) -> Adapter:
    """Give the head another shape."""
    return Adapter(adapter.pairs, {"classifier.weight": np.zeros((3, ROWS), np.float32)})


def flipped_bit(instruction: Instruction, reply: Reply) -> Reply:
    """Damage the bytes on the way."""
    packed = reply.payloads["adapter"]
    array = packed.array.copy()
    array[5] ^= 1
    return replace(reply, payloads={"adapter": Packed(array, packed.layout)})
