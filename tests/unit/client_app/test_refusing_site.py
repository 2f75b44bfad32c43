"""Ten rounds in which a site believes nobody are ten rounds of its own training, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_app.data import SiteData
from client_app.methods.base import LocalRule
from client_app.models import load_resident
from client_app.site import LocalSite
from client_app.training import train
from fedapp.adapter import Adapter
from fedapp.attacks import random_weights
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction, Reply
from fedapp.gossip.ledger import read_ledger
from fedapp.mailbox import Delivery, Mailbox
from fedapp.peer_update import read_letter, write_letter
from fedapp.seeds import derive_seed

ROUNDS, RUN, SITE = 10, "0" * 32, "north"
LABELS = ["healthy", "ill"]
SETTINGS = {
    "method": "lightyear", "model.source": "embedded:tiny-encoder", "model.max-length": 16,
    "lora.rank": 2, "lora.targets": "query", "train.batch-size": 4, "train.local-epochs": 1,
    "train.learning-rate": 0.02, "train.threads": 1, "train.device": "cpu",
    "federation.rounds": ROUNDS,
}  # fmt: skip
Hostile = Callable[[Adapter], dict[str, Adapter]]


def data() -> SiteData:
    words = itertools.cycle(["chest pain", "no pain", "high pressure at rest", "fever", "normal"])
    records = [{"text": f"{next(words)} {i}", "label": i % 2} for i in range(20)]
    splits = {"train": records[:12], "validation": records[12:16], "test": records[16:]}
    return SiteData(site=SITE, label_map=LABELS, splits=splits)


def by_hand(config: RunConfig) -> list[Adapter]:
    """The site's models after every round of a loop that knows of no exchange."""
    resident = load_resident(config, LABELS)
    items = resident.task.prepare(data().splits["train"])
    model, found = resident.parameters.initial(config.seed), []
    steps = 3  # twelve records by four
    for round in range(1, ROUNDS + 1):
        resident.parameters.load(model)
        rule = LocalRule(config, resident.parameters)
        rule.begin({"adapter": model}, {}, steps)
        train(
            resident, items, rule, config, seed=derive_seed(config.seed, "train", SITE, round),
            first_step=(round - 1) * steps, total_steps=ROUNDS * steps, epochs=1,
        )  # fmt: skip
        model = rule.finish({"adapter": model})["adapter"]
        found.append(model)
    return found


def in_a_federation(config: RunConfig, folder: Path, hostile: Hostile) -> list[Adapter]:
    """What the site publishes in every round, while its neighbours send what ``hostile`` makes."""
    site = LocalSite(data())

    def ask(action: Action, round: int, first: Adapter | None) -> Reply:
        payloads = {} if first is None else {"adapter": pack(first)}
        reply = site.execute(
            Instruction(action, SITE, config, round, payloads, run=RUN, state_folder=str(folder))
        )
        assert reply.failure is None, reply.failure
        return reply

    initial = ask(Action.INITIAL, 1, None).payloads["adapter"].unpack()
    box, found = Mailbox.of(folder, SITE, RUN), []
    for round in range(1, ROUNDS + 1):
        ask(Action.PUBLISH, round, initial)
        sent = box.outgoing(round)
        assert sent is not None
        own = read_letter(
            sent, round=round, like=initial, terms=sent.terms, codec="fp32", max_bytes=10**8
        )
        letters = [
            replace(write_letter(name, model, sent.terms, "fp32"), digest="d" * 64)
            for name, model in sorted(hostile(own).items())
        ]
        box.deliver(round, Delivery(tuple(letters)))
        ask(Action.MIX, round, initial)
        found.append(own)
    return found


def enemies(own: Adapter) -> dict[str, Adapter]:
    flipped = own.map(lambda name, array: array if name.endswith("lora_A") else -array)
    huge = own.map(lambda _, array: np.full_like(array, 3e3))
    return {"east": flipped, "south": huge, "west": random_weights(own, 7)}


@pytest.mark.parametrize("method", ["lightyear", "alone"])
def test_who_refuses_everybody_for_ten_rounds_is_who_trains_by_itself(
    tmp_path: Path, method: str
) -> None:
    config = RunConfig.from_flat({**SETTINGS, "method": method})
    expected = by_hand(config)

    found = in_a_federation(config, tmp_path, enemies)

    assert [one.digest() for one in found] == [one.digest() for one in expected]
    assert len({one.digest() for one in found}) == ROUNDS, "it goes on learning"
    (ledger,) = tmp_path.rglob("ledger.jsonl")
    entries = read_ledger(ledger)
    assert [entry.round for entry in entries] == list(range(1, ROUNDS + 1))
    for entry in entries:
        assert [one.origin for one in entry.heard] == ["east", "south", "west"]
        assert not any(one.accepted or one.weight for one in entry.heard)
        assert entry.own_weight == 1
        if method == "lightyear":
            assert all("head" in one.reason for one in entry.heard), entry.heard


def test_one_honest_neighbour_would_have_changed_it(tmp_path: Path) -> None:
    """Or the test above could not tell."""
    config = RunConfig.from_flat(SETTINGS)
    expected = by_hand(config)

    def honest(own: Adapter) -> dict[str, Adapter]:
        return {**enemies(own), "north-east": own.map(lambda _, x: (1.05 * x).astype(np.float32))}

    found = in_a_federation(config, tmp_path, honest)

    assert found[0].digest() == expected[0].digest(), "in round 1 nothing is mixed yet"
    assert all(a.digest() != b.digest() for a, b in zip(found[1:], expected[1:], strict=True))
