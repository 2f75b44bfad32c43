"""A site that hears one model so large that nothing can be mixed with it: the others are mixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import site_data
from threadpoolctl import threadpool_info, threadpool_limits

from client_app.site import LocalSite
from fedapp.adapter import Adapter
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction, Reply
from fedapp.gossip.ledger import Heard, read_ledger
from fedapp.mailbox import Delivery, Mailbox
from fedapp.peer_update import write_letter
from fedapp.registry import METHODS, load_half

TASK, RUN = "image-classification", "0" * 32
SETTINGS = {
    "method": "lightyear", "model.task": TASK, "model.source": "embedded:conv4",
    "model.trainable": "all", "train.batch-size": 8, "train.local-epochs": 1, "train.threads": 1,
    "train.device": "cpu", "federation.rounds": 2,
    "lightyear.kernel-gate": "off", "lightyear.prediction": -1.0, "lightyear.distance": 0.0,
}  # fmt: skip


def ask(action: Action, folder: Path, initial: Adapter | None, round: int = 1) -> Reply:
    site, config = LocalSite(site_data(TASK)), RunConfig.from_flat(SETTINGS)
    payloads = {} if initial is None else {"adapter": pack(initial)}
    asked = Instruction(
        action, "north", config, round, payloads, run=RUN, state_folder=str(folder)
    )  # fmt: skip
    reply = site.execute(asked)
    assert reply.failure is None, reply.failure
    return reply


def round_with(folder: Path, initial: Adapter, models: dict[str, Adapter]) -> tuple[Any, ...]:
    """Train, hear the models, mix; return the reply, the ledger's rows and the next model."""
    ask(Action.PUBLISH, folder, initial)
    box = Mailbox.of(folder, "north", RUN)
    sent = box.outgoing(1)
    assert sent is not None
    letters = [
        replace(write_letter(name, each, sent.terms, "fp32"), digest="d" * 64)
        for name, each in sorted(models.items())
    ]
    box.deliver(1, Delivery(tuple(letters)))
    reply = ask(Action.MIX, folder, initial)
    (ledger,) = folder.rglob("ledger.jsonl")
    (entry,) = read_ledger(ledger)
    ask(Action.PUBLISH, folder, initial, 2)
    following = box.outgoing(2)
    assert following is not None
    return reply, {one.origin: one for one in entry.heard}, following.payload


@pytest.fixture
def models(tmp_path: Path) -> tuple[Adapter, dict[str, Adapter]]:
    initial = ask(Action.INITIAL, tmp_path / "first", None).payloads["adapter"].unpack()
    rng = np.random.default_rng(0)

    def near(_: str, array: Any) -> Any:
        return (array + 0.01 * rng.standard_normal(array.shape)).astype(np.float32)

    # Finite, and within what validation lets in; four such layers one after another are not.
    huge = initial.map(lambda _, array: np.full_like(array, 1e6))
    return initial, {"east": initial.map(near), "huge": huge, "south": initial.map(near)}


def test_the_huge_one_is_refused_alone_and_the_others_mix_as_without_it(
    tmp_path: Path, models: tuple[Adapter, dict[str, Adapter]]
) -> None:
    initial, sent = models
    without = {name: each for name, each in sent.items() if name != "huge"}

    reply, rows, following = round_with(tmp_path / "with", initial, sent)
    expected, fewer, same = round_with(tmp_path / "without", initial, without)

    huge: Heard = rows.pop("huge")
    assert (huge.accepted, huge.weight, huge.reason) == (False, 0.0, "unmixable")
    assert huge.scores["distance"] is not None
    assert huge.scores["distance"] > 1e5
    assert rows == fewer
    assert all(one.accepted and one.weight == pytest.approx(1 / 3) for one in rows.values())
    assert following == same, "the next round begins with the same model"
    assert reply.metrics == expected.metrics
    counted = {key: reply.numbers[key] for key in ("neighbours_heard", "neighbours_accepted")}
    assert counted == {"neighbours_heard": 3, "neighbours_accepted": 2}


def test_a_rule_computes_with_one_thread_and_so_to_the_same_bits_on_any_machine(
    tmp_path: Path, models: tuple[Adapter, dict[str, Adapter]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums depend on the number of threads in the last bit, and cores may be busy."""
    seen: list[tuple[set[int], int]] = []
    rule = METHODS["lightyear"].peer_rule
    real = load_half(rule).mix

    def spy(self: Any, own: Adapter, neighbours: Any, context: Any) -> Any:
        pools = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        seen.append((pools, torch.get_num_threads()))
        return real(self, own, neighbours, context)

    monkeypatch.setattr(load_half(rule), "mix", spy)
    monkeypatch.setitem(SETTINGS, "train.threads", 2)
    with threadpool_limits(limits=2, user_api="blas"):
        round_with(tmp_path / "run", *models)

    # The first asked with all three, then with one, two and three: `huge` spoils it.
    assert seen == [({1}, 2)] * 4, "one thread of numpy's, those of the settings of torch"
