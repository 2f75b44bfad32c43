"""What a site is told of the others' work, and what it is not told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_federation import HOSPITALS, FakeGrid, initial_adapter, silent, with_numbers

from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.exchange import Action
from fedapp.results import RunFolder
from fedapp.state import join_state, split_state
from server_app.app import build_strategy
from server_app.checkpoint import newest_checkpoint
from server_app.interference import EACH, OTHERS, OWN

Finished = Callable[..., RunFolder]
LAYER = "layer.1.query"


def dense(adapter: Adapter) -> np.ndarray:
    pair = adapter.pairs[LAYER]
    return np.asarray(pair.scaling * pair.b_mr.astype(float) @ pair.a_rn.astype(float))


@pytest.mark.parametrize("method", ["fedavg", "svd", "dysco", "flora"])
def test_a_site_is_told_the_sum_of_the_others_work_and_its_own(
    finished: Finished, method: str
) -> None:
    grid = FakeGrid()
    updates: dict[tuple[int, str], Adapter] = {}

    def note(instruction, reply):  # type: ignore[no-untyped-def]
        updates[instruction.round, instruction.site] = reply.payloads["adapter"].unpack()
        return reply

    for site in HOSPITALS:
        for round in (1, 2):
            grid.inject(site, note, round=round)
    finished(
        grid,
        method=method,
        federation__interference=True,
        federation__local_only=False,
    )

    asked = {(i.round, i.site): i for i in grid.sent if i.action is Action.TRAIN}
    total = sum(HOSPITALS.values())
    for round in (1, 2, 3):
        for site in HOSPITALS:
            payloads = asked[round, site].payloads
            if round == 1:
                assert not {OTHERS, OWN} & set(payloads)
                continue
            added = {
                other: HOSPITALS[other]
                / total
                * (
                    dense(updates[round - 1, other])
                    - dense(asked[round - 1, other].payloads["adapter"].unpack())
                )
                for other in HOSPITALS
            }
            expected = sum(work for other, work in added.items() if other != site)
            np.testing.assert_allclose(dense(payloads[OTHERS].unpack()), expected, atol=1e-5)
            np.testing.assert_allclose(dense(payloads[OWN].unpack()), added[site], atol=1e-5)
            # Mixed by an SVD: no factor is another site's.
            rows = payloads[OTHERS].unpack().pairs[LAYER].a_rn
            for other in HOSPITALS:
                for theirs in updates[round - 1, other].pairs[LAYER].a_rn:
                    cosine = rows @ theirs / np.linalg.norm(rows, axis=1) / np.linalg.norm(theirs)
                    assert np.abs(cosine).max() < 1 - 1e-6


def test_where_b_alone_travels_the_work_is_that_on_the_seeded_a(
    finished: Finished, settings: Callable[..., RunConfig]
) -> None:
    config = settings(method="ffa-lora", federation__interference=True, federation__rounds=2)
    grid = FakeGrid()
    updates: dict[str, Adapter] = {}

    def note(instruction, reply):  # type: ignore[no-untyped-def]
        updates[instruction.site] = reply.payloads["adapter"].unpack()
        return reply

    for site in HOSPITALS:
        grid.inject(site, note)
    finished(grid, config=config)

    pair = initial_adapter(config).pairs[LAYER]  # whose B is zero
    for i in grid.sent:
        if (i.action, i.round) == (Action.TRAIN, 2):
            expected = sum(
                HOSPITALS[other]
                / sum(HOSPITALS.values())
                * pair.scaling
                * (update.tensors[f"{LAYER}.lora_B"].astype(float) @ pair.a_rn)
                for other, update in updates.items()
                if other != i.site
            )
            np.testing.assert_allclose(dense(i.payloads[OTHERS].unpack()), expected, atol=1e-5)


def test_of_every_single_work_a_site_is_told_what_decides_its_length_and_no_more(
    finished: Finished,
) -> None:
    grid = FakeGrid()
    updates: dict[tuple[int, str], Adapter] = {}

    def note(instruction, reply):  # type: ignore[no-untyped-def]
        updates[instruction.round, instruction.site] = reply.payloads["adapter"].unpack()
        return reply

    for site in HOSPITALS:
        grid.inject(site, note, round=1)
    finished(grid, federation__interference_each=True)

    asked = {(i.round, i.site): i for i in grid.sent if i.action is Action.TRAIN}
    h_tn = np.random.default_rng(0).standard_normal((50, 8))
    for site in HOSPITALS:
        told = asked[2, site].payloads[EACH].unpack()
        assert not told.pairs
        factors = told.tensors[LAYER].astype(float)
        lengths = [np.linalg.norm(h_tn[:, : factor.shape[1]] @ factor.T) for factor in factors]
        expected = []
        for other in set(HOSPITALS) - {site}:
            start = asked[1, other].payloads["adapter"].unpack()
            work = dense(updates[1, other]) - dense(start)
            share = HOSPITALS[other] / sum(HOSPITALS.values())
            expected.append(share * np.linalg.norm(h_tn[:, : work.shape[1]] @ work.T))
        np.testing.assert_allclose(sorted(lengths), sorted(expected), rtol=1e-4)


def test_nothing_is_sent_unless_it_is_asked_for(finished: Finished) -> None:
    grid = FakeGrid()
    finished(grid, method="dysco")
    assert not any({OTHERS, OWN} & set(i.payloads) for i in grid.sent)


def test_the_federations_row_holds_means_and_their_ratio(finished: Finished) -> None:
    grid = FakeGrid()
    for site, value in zip(sorted(HOSPITALS), (1.0, 2.0, 3.0), strict=False):
        grid.inject(
            site,
            with_numbers(interference=value, own_effect=4.0, interference_sum=2 * value),
            round=2,
        )
    rows = finished(grid, federation__interference=True, federation__rounds=2).read_metrics()
    row = [row for row in rows if row["phase"] == "federation"][1]
    assert row["interference"] == pytest.approx(2.0)  # of the three that have measured
    assert row["interference_sum"] == pytest.approx(4.0)
    assert row["interference_ratio"] == pytest.approx(0.5)


def test_a_site_that_was_away_is_told_of_the_others_alone(finished: Finished) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", silent, round=1, times=9)
    finished(grid, federation__interference=True, federation__min_replies=3, federation__rounds=2)
    (back,) = [i for i in grid.sent if (i.site, i.round, i.action) == ("Hungary", 2, Action.TRAIN)]
    assert set(back.payloads) == {"adapter", OTHERS}


def test_it_survives_a_checkpoint(finished: Finished, settings: Callable[..., RunConfig]) -> None:
    config = settings(method="dysco", federation__interference=True, federation__rounds=2)
    grid = FakeGrid()
    folder = finished(grid, config=config)
    saved = newest_checkpoint(folder.checkpoint)
    strategy = build_strategy(config)
    strategy.load_state_dict(join_state(*split_state(saved.strategy)))
    payloads = strategy.interference.payloads("Hungary")
    assert set(payloads) == {OTHERS, OWN}
    strategy.load_state_dict(strategy.state_dict())
    again = strategy.interference.payloads("Hungary")
    assert payloads[OTHERS].digest() == again[OTHERS].digest()
