"""The first phase of a round of dysco: what is refused, who may be missing, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_federation import (
    COLUMNS,
    HOSPITALS,
    FakeGrid,
    Fault,
    fails,
    flower_error,
    initial_adapter,
    silent,
    with_metrics,
    with_round,
)

from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import MissingReplies
from fedapp.exchange import Action, Instruction, Reply
from fedapp.results import RunFolder
from server_app.app import build_strategy
from server_app.flower import configure_train, to_arrays

Finished = Callable[..., RunFolder]
LAYER = "layer.1.query"
TWO_ROUNDS = {"method": "dysco", "federation__rounds": 2, "federation__local_only": False}


def sending(change: Callable[[dict[str, np.ndarray]], Any], codec: Any = "fp32") -> Fault:
    """Send other bases, correctly packed."""

    def fault(instruction: Instruction, reply: Reply) -> Reply:
        bases = {n: x.copy() for n, x in reply.payloads["bases"].unpack().tensors.items()}
        changed = change(bases)
        adapter = changed if isinstance(changed, Adapter) else Adapter({}, bases)
        return replace(reply, payloads={"bases": pack(adapter, codec)})

    return fault


def put(value: Any) -> Fault:
    return sending(lambda bases: bases.__setitem__(LAYER, value(bases[LAYER])))


def poison(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(rows: np.ndarray) -> np.ndarray:
        rows[0, 1] = value
        return rows

    return change


def pair(bases: dict[str, np.ndarray]) -> Adapter:
    rows = bases[LAYER]
    return Adapter({LAYER: LoraPair(rows.T.copy(), rows, 1.0)})


HOSTILE: dict[str, tuple[Fault, str]] = {
    "not orthonormal": (
        put(lambda rows: 1.001 * rows),
        f"not-orthonormal): the basis of layer '{LAYER}' must have orthonormal rows",
    ),
    "one direction twice": (put(lambda rows: rows[[0, 0]]), "(not-orthonormal)"),
    "zero": (put(np.zeros_like), "(not-orthonormal)"),
    "nan": (
        put(poison(float("nan"))),
        f"(non-finite): array '{LAYER}' must be finite, got nan at [0, 1]; run the same fedapp",
    ),
    "inf": (put(poison(float("inf"))), "(non-finite)"),
    "huge": (put(poison(1e20)), "(too-large)"),
    "wrong rank": (
        put(lambda rows: rows[:1].copy()),
        f"(wrong-rank): the basis of layer '{LAYER}' must have 2 rows, got 1",
    ),
    "wrong shape": (
        put(lambda rows: np.eye(2, COLUMNS + 1, dtype=np.float32)),
        f"(wrong-shape): array '{LAYER}' must have shape [2, {COLUMNS}]",
    ),
    "unknown layer": (
        sending(lambda bases: bases.__setitem__("layer.9.query", bases[LAYER])),
        "(wrong-layout): tensor 'layer.9.query' is not part of the model",
    ),
    "missing layer": (
        sending(lambda bases: bases.__delitem__(LAYER)),
        f"(wrong-layout): tensor '{LAYER}' is missing",
    ),
    "a pair": (sending(pair), "(wrong-layout)"),
    "rounded": (sending(lambda bases: None, "bf16"), "(wrong-codec)"),
    "bad metrics": (with_metrics(accuracy=2.0), "'accuracy' of "),
    "nothing": (lambda i, reply: replace(reply, payloads={}), "(empty)"),
    "of another round": (with_round(1), "the reply is for round 1, expected 2"),
    "raises": (fails("TrainingError", "site Hungary, round 2: no room"), "no room"),
    "hangs": (silent, "no reply within 0.3 s"),
    "crashes": (flower_error, "the client app crashed"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_or_missing_basis_is_named_and_does_not_stop_the_round(
    finished: Finished, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", HOSTILE[fault][0], round=2, action=Action.BASES, times=9)

    folder = finished(grid, **TWO_ROUNDS)

    output = capsys.readouterr().out
    line = next(line for line in output.splitlines() if "no basis" in line)
    assert "site Hungary, round 2: no basis: " in line
    assert HOSTILE[fault][1] in line
    rows = [row for row in folder.read_metrics() if row["phase"] == "federation"]
    assert [row["basis_replies"] for row in rows] == [4, 3]
    assert [row["replies"] for row in rows] == [4, 4], "it trains all the same"
    received = [r["site"] for r in folder.read_metrics() if r["phase"] == "received"]
    assert sorted(received) == sorted([*HOSPITALS] * 3), "and is evaluated then, or in the end"


def test_a_fault_that_passes_is_asked_about_again(finished: Finished) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", flower_error, round=1, action=Action.BASES)
    rows = finished(grid, **TWO_ROUNDS).read_metrics()
    assert next(row for row in rows if row["phase"] == "federation")["basis_replies"] == 4


def test_the_fused_bases_are_of_those_present(finished: Finished) -> None:
    """Hungary, absent, gets what all others use least; the others never hear of it."""
    grid = FakeGrid()
    grid.inject("Hungary", silent, action=Action.BASES, times=9)
    finished(grid, **{**TWO_ROUNDS, "federation__rounds": 1})

    proposed = {
        i.site: grid.sites[i.site].execute(i).payloads["bases"].unpack().tensors[LAYER]
        for i in grid.sent
        if i.action is Action.BASES and i.site != "Hungary"
    }
    received = {
        i.site: i.payloads["adapter"].unpack().pairs[LAYER].a_rn
        for i in grid.sent
        if i.action is Action.TRAIN
    }
    assert set(received) == set(HOSPITALS)
    for site, a_rn in received.items():
        s_nn = sum(b.T.astype(float) @ b for other, b in proposed.items() if other != site)
        best = np.linalg.eigvalsh(s_nn)[-2:].sum()
        assert np.trace(a_rn @ s_nn @ a_rn.T) == pytest.approx(best, rel=1e-5)


def test_without_any_basis_the_run_ends_and_names_every_site(finished: Finished) -> None:
    grid = FakeGrid()
    for site in HOSPITALS:
        grid.inject(site, fails("DataError", f"{site} is on fire"), action=Action.BASES, times=9)
    with pytest.raises(MissingReplies, match=r"none of 4 sites sent a basis.*Hungary is on fire"):
        finished(grid, **TWO_ROUNDS)


def test_a_site_that_misses_the_training_does_not_stop_the_round_either(
    finished: Finished,
) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", silent, round=1, times=9)
    folder = finished(grid, **TWO_ROUNDS, federation__min_replies=3)
    rows = [row for row in folder.read_metrics() if row["phase"] == "federation"]
    assert [row["replies"] for row in rows] == [3, 4]
    # Back in round 2, it got everything in one message.
    (back,) = [i for i in grid.sent if (i.site, i.round, i.action) == ("Hungary", 2, Action.TRAIN)]
    assert set(back.payloads) == {"adapter", "folded"}


def test_only_bases_are_asked_for_and_their_bytes_are_counted(finished: Finished) -> None:
    grid = FakeGrid()
    folder = finished(grid, **TWO_ROUNDS)

    asked = [i for i in grid.sent if i.action is Action.BASES]
    assert [i.site for i in asked] == 2 * ["Cleveland", "Hungary", "VA Long Beach", "Switzerland"]
    assert all(i.splits == ("validation",) for i in asked)
    assert [set(i.payloads) for i in asked] == 4 * [{"adapter"}] + 4 * [{"adapter", "folded"}]
    rows = [row for row in folder.read_metrics() if row["phase"] == "federation"]
    for row in rows:
        this = [i for i in grid.sent if i.round == row["round"]]
        down = {
            action: sum(p.nbytes for i in this if i.action is action for p in i.payloads.values())
            for action in (Action.BASES, Action.TRAIN)
        }
        assert row["basis_bytes_down"] == down[Action.BASES]
        assert row["bytes_down"] == sum(down.values())
        assert row["basis_bytes_up"] == 4 * 4 * 2 * COLUMNS * 4  # sites, layers, rank, fp32
        assert row["bytes_up"] > row["basis_bytes_up"]
        assert (row["insensitive_share"], row["basis_tokens"]) == (0.5, 64)
        assert 0 <= row["basis_agreement"] <= 1
    summary = json.loads(folder.summary_file.read_text())
    assert summary["bytes_down"] >= sum(row["bytes_down"] for row in rows)


def test_the_received_model_is_evaluated_once_in_a_round(finished: Finished) -> None:
    """Where the activations are looked at, and its metrics stand in the rows as ever."""
    grid, other = FakeGrid(), FakeGrid()
    rows = finished(grid, **TWO_ROUNDS, name="bases").read_metrics()
    plain = {**TWO_ROUNDS, "method": "random-boost"}
    expected = finished(other, **plain, name="plain").read_metrics()

    for instruction in grid.sent:
        if instruction.action is Action.TRAIN:
            assert instruction.splits == ()
            tested = ("test",) if instruction.round == 2 else ()
            assert instruction.personal_splits == ("validation", *tested)
    assert [(r["round"], r["site"], r["phase"], r.get("split")) for r in rows] == [
        (r["round"], r["site"], r["phase"], r.get("split")) for r in expected
    ]
    assert all("received_accuracy" in r for r in rows if r["phase"] == "federation")


def test_other_methods_have_one_phase(finished: Finished) -> None:
    grid = FakeGrid()
    finished(grid, method="random-boost", federation__rounds=1)
    assert Action.BASES not in {i.action for i in grid.sent}


def test_flowers_own_loop_has_the_phase_too() -> None:
    """`configure_train` asks for the bases before it returns the training's messages."""
    config = RunConfig.from_flat({"method": "dysco", "lora.rank": 2})
    grid, strategy = FakeGrid(), build_strategy(config)
    strategy.begin(initial_adapter(config))
    messages = list(configure_train(strategy, 1, to_arrays(strategy.adapter), grid))
    assert len(messages) == 4
    assert [i.action for i in grid.sent].count(Action.BASES) == 4
