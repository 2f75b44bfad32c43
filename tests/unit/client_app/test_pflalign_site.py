"""pFLAlign at a site with the real tiny encoder: what it keeps, finds again, and does without."""

from __future__ import annotations

import itertools
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from benchmarks.held_memory import tensor_bytes
from client_app.data import SiteData
from client_app.flat import CPU_SPAN
from client_app.methods.base import LocalRule
from client_app.methods.pflalign import PflAlign
from client_app.site import LocalSite
from client_app.state import FORMAT
from fedapp.adapter import Adapter
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction, Reply
from fedapp.increments import add
from fedapp.state import join_state

SETTINGS = {
    "method": "pflalign",
    "model.source": "embedded:tiny-encoder",
    "model.max-length": 16,
    "lora.rank": 2,
    "lora.targets": "query",
    "train.learning-rate": 0.5,
    "train.batch-size": 4,
    "train.local-epochs": 1,
    "train.clip-norm": 0.0,
    "train.weight-decay": 0.0,
    "train.threads": 1,
    "train.device": "cpu",
}
RUN = "0a" * 16


def make_config(**flat: Any) -> RunConfig:
    return RunConfig.from_flat({**SETTINGS, **flat})


def make_site() -> LocalSite:
    words = itertools.cycle(["chest pain", "no pain", "high pressure at rest", "fever", "normal"])
    records = [{"text": f"{next(words)} {i}", "label": i % 2} for i in range(16)]
    splits = {"train": records[:-4], "validation": records[-4:-2], "test": records[-2:]}
    return LocalSite(SiteData(site="north", label_map=["healthy", "ill"], splits=splits, notes=[]))


def ask(
    place: Path | None,
    adapter: Adapter | None,
    round: int = 1,
    action: Action = Action.TRAIN,
    site: LocalSite | None = None,
    **flat: Any,
) -> Reply:
    where = {"run": RUN, "state_folder": str(place)} if place else {}
    reply = (site or make_site()).execute(
        Instruction(
            action,
            "north",
            make_config(**flat),
            round,
            payloads={} if adapter is None else {"adapter": pack(adapter)},
            splits=("validation",),
            **where,
        )
    )
    assert reply.failure is None, reply.failure
    return reply


@pytest.fixture(scope="module")
def initial() -> Adapter:
    """The first adapter with B off zero, so that every array matters."""
    adapter = ask(None, None, action=Action.INITIAL).payloads["adapter"].unpack()
    rng = np.random.default_rng(0)
    return adapter.map(lambda _, x: (x + 0.05 * rng.standard_normal(x.shape)).astype(np.float32))


def sent(reply: Reply) -> Adapter:
    return reply.payloads["adapter"].unpack()


def files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.safetensors"))


def stored(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["fedapp"])
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118


def test_the_offset_is_what_training_added_to_the_model_received(
    tmp_path: Path, initial: Adapter
) -> None:
    first = ask(tmp_path, initial)
    tensors, header = stored(files(tmp_path)[0])
    state = join_state(tensors, header["state"])

    delta = dict(state["method.delta"].arrays())
    before, after = dict(initial.arrays()), dict(sent(first).arrays())
    assert set(delta) == set(before)
    for name, array in delta.items():
        np.testing.assert_array_equal(array, after[name] - before[name])
        assert array.any(), name
    assert set(first.payloads) == {"adapter"}, "nothing of it is sent beside the model"
    assert state["method.steps"] == first.numbers["steps"] == 3
    assert first.numbers["delta_norm"] == pytest.approx(
        np.sqrt(sum(np.square(d, dtype=np.float64).sum() for d in delta.values())), rel=1e-6
    )
    assert "gate_mean" not in first.numbers, "there was no offset to withdraw"

    key = "received/validation"
    moved = initial.map(lambda name, array: array + np.float32(0.01))
    second = ask(tmp_path, moved, round=2)
    tested = ask(tmp_path, moved, round=1, action=Action.EVALUATE)
    plain = ask(None, add(moved, state["method.delta"]), action=Action.EVALUATE, method="fedavg")
    assert second.numbers["state_round"] == tested.numbers["state_round"] == 1.0
    assert second.metrics[key] == tested.metrics[key] == plain.metrics[key]
    assert 0 <= second.numbers["gate_p10"] <= second.numbers["gate_p90"] <= 1


def test_a_site_without_an_offset_is_tested_with_the_model_as_it_came(
    tmp_path: Path, initial: Adapter
) -> None:
    plain = ask(None, initial, action=Action.EVALUATE, method="fedavg")
    for place in (None, tmp_path):  # a deployed site that never trains may have no place
        held_out = ask(place, initial, round=3, action=Action.EVALUATE)
        assert held_out.metrics == plain.metrics
        assert held_out.numbers["state_round"] == 0.0


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def _future(path: Path) -> None:
    tensors, header = stored(path)
    header["format"] = FORMAT + 1
    save_file(tensors, path, metadata={"fedapp": json.dumps(header)})


def _other_layout(path: Path) -> None:
    """Put the state of the same run with a larger rank in its place."""
    other = ask(None, None, action=Action.INITIAL, **{"lora.rank": 3}).payloads["adapter"].unpack()
    place = path.parents[2].with_name("other")
    ask(place, other, **{"lora.rank": 3})
    path.write_bytes(files(place)[0].read_bytes())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut, "cannot be read"),
        (_flip, "is damaged"),
        (_future, "is of another format"),
        (_other_layout, "is of another layout"),
        (Path.unlink, ""),
    ],
)
def test_a_site_that_lost_its_state_begins_with_no_offset_and_says_so(
    damage: Any, words: str, tmp_path: Path, initial: Adapter, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "sites"
    ask(place, initial)
    damage(files(place)[0])

    reply = ask(place, initial, round=2)

    assert reply.numbers["state_round"] == 0.0
    assert "gate_mean" not in reply.numbers
    assert not words or re.search(f"{words}.*; the site starts from zero", caplog.text)
    assert sent(reply).digest() == sent(ask(tmp_path / "new", initial, round=2)).digest()
    assert ask(place, initial, round=3).numbers["state_round"] == 2.0, "and goes on from there"


def test_a_repeat_after_a_kill_gives_the_same_bits(tmp_path: Path, initial: Adapter) -> None:
    """The state of a round is written before its reply leaves; a repeat begins before it."""
    site = make_site()
    rounds = [sent(ask(tmp_path, initial, r, site=site)).digest() for r in (1, 2, 3)]
    assert len(set(rounds)) == 3, "each begins at another offset"
    kept = {path.name: path.read_bytes() for path in files(tmp_path)}

    again = [sent(ask(tmp_path, initial, r, site=make_site())).digest() for r in (3, 2)]

    assert again == [rounds[2], rounds[1]]
    for path in files(tmp_path):
        assert path.read_bytes() == kept[path.name]


def test_another_run_begins_with_no_offset(tmp_path: Path, initial: Adapter) -> None:
    ask(tmp_path, initial)
    (path,) = files(tmp_path)
    path.parent.rename(path.parent.with_name("0b" * 16))

    assert ask(tmp_path, initial, round=2).numbers["state_round"] == 0.0


PLAIN = {"method": "fedavg", "train.optimizer": "sgd", "train.momentum": 0.0}
OFF = {"pflalign.local-update": False, "pflalign.personalisation": False}


@pytest.mark.parametrize(
    "loop",
    [{}, {"train.clip-norm": 0.01, "train.gradient-accumulation": 2, "train.schedule": "linear"}],
    ids=["plain", "clipped-accumulated"],
)
def test_with_both_halves_off_it_is_fedavg_bit_for_bit(
    loop: dict[str, Any], tmp_path: Path, initial: Adapter
) -> None:
    ours = ask(tmp_path, initial, **OFF, **loop)
    theirs = ask(None, initial, **PLAIN, **loop)

    assert sent(ours).digest() == sent(theirs).digest()
    assert not files(tmp_path)


def test_accumulated_batches_are_one_step(tmp_path: Path, initial: Adapter) -> None:
    """Moments and withdrawal go by the optimiser's steps, whatever the batches behind them."""
    loop = {"train.batch-size": 2, "train.gradient-accumulation": 2, "pflalign.gate": "full"}
    ask(tmp_path, initial, **loop)
    second = ask(tmp_path, initial, round=2, **loop)

    tensors, header = stored(files(tmp_path)[-1])
    assert second.numbers["steps"] == 3
    assert join_state(tensors, header["state"])["method.steps"] == 6
    assert second.numbers["delta_withdrawn"] == pytest.approx(1.0, rel=1e-5)


def test_clipping_bounds_the_step_and_not_the_withdrawal(tmp_path: Path, initial: Adapter) -> None:
    """What is clipped is the preconditioned gradient, as every method's is."""
    ask(tmp_path, initial)
    tight = {"train.clip-norm": 1e-6, "pflalign.gate": "full"}
    clipped = ask(tmp_path, initial, round=2, **tight)

    assert clipped.numbers["delta_withdrawn"] == pytest.approx(1.0, rel=1e-4)
    for (name, array), (_, start) in zip(sent(clipped).arrays(), initial.arrays(), strict=True):
        np.testing.assert_allclose(array, start, atol=1e-5, err_msg=name)


def test_a_site_that_trains_alone_takes_the_steps_that_the_rate_is_for(initial: Adapter) -> None:
    budget = {"federation.rounds": 1, "federation.local-only": True}
    alone = ask(None, initial, action=Action.LOCAL_ONLY, **budget)
    offset = {"pflalign.personalisation": False}
    without = ask(None, initial, action=Action.LOCAL_ONLY, **offset, **budget)
    off = ask(None, initial, action=Action.LOCAL_ONLY, **OFF, **budget)
    plain = ask(None, initial, action=Action.LOCAL_ONLY, **PLAIN, **budget)

    assert alone.numbers["train_loss"] == without.numbers["train_loss"]
    assert alone.numbers["train_loss"] != plain.numbers["train_loss"], (
        "its steps are preconditioned"
    )
    assert off.numbers["train_loss"] == plain.numbers["train_loss"]


def test_without_an_identity_of_the_run_it_is_refused(initial: Adapter) -> None:
    reply = make_site().execute(
        Instruction(Action.TRAIN, "north", make_config(), 1, payloads={"adapter": pack(initial)})
    )

    assert reply.failure is not None
    assert reply.failure.kind == "ConfigError"
    assert "method pflalign with algorithm fedavg keeps something" in reply.failure.message


def test_a_round_holds_four_vectors_and_scratch_and_nothing_of_what_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round, whose beginning reads three vectors from the disk."""
    large = {"lora.rank": 256, "lora.targets": "query,value"}
    adapter = ask(None, None, action=Action.INITIAL, **large).payloads["adapter"].unpack()
    held: list[int] = []

    def measured(self: Any, learning_rate: float) -> None:
        held.append(tensor_bytes() + tracemalloc.get_traced_memory()[0])

    def peak(place: Path | None, round: int, **flat: Any) -> int:
        held.clear()
        ask(place, adapter, round, **large, **flat)
        return max(held)

    plain = {"method": "fedavg", "train.optimizer": "sgd", "train.momentum": 0.0}
    true = PflAlign.after_step

    def after_step(self: Any, learning_rate: float) -> None:
        true(self, learning_rate)
        measured(self, learning_rate)

    monkeypatch.setattr(PflAlign, "after_step", after_step)
    monkeypatch.setattr(LocalRule, "after_step", measured)
    tracemalloc.start()
    try:
        for _ in range(2):  # the first time Python loads what it needs
            without = peak(None, 2, **plain)
            peak(tmp_path, 1)
            with_it = peak(tmp_path, 2)
    finally:
        tracemalloc.stop()

    size, scratch = 4 * adapter.size, 2 * 4 * CPU_SPAN
    assert size > scratch
    assert 4 * size <= with_it - without <= 4 * size + scratch + 2**16
