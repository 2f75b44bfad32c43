"""Movement, drift diversity and cosine against their definitions on flat vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quadratic import bases_of, quadratic_config, regressions

from fedapp.adapter import Adapter, LoraPair
from fedapp.registry import METHODS
from server_app.consistency import movement
from server_app.merges import Part

KEYS = {"client_movement", "drift_diversity", "movement_cosine"}


def adapter(rng: np.random.Generator) -> Adapter:
    b_mr, a_rn, head = (rng.standard_normal(s).astype(np.float32) for s in ((5, 2), (2, 4), (3,)))
    return Adapter({"q": LoraPair(b_mr, a_rn, 2.0)}, {"head": head})


def flat(model: Adapter) -> Any:
    return np.concatenate([array.ravel() for _, array in model.arrays()]).astype(np.float64)


def test_they_are_what_their_names_say() -> None:
    rng = np.random.default_rng(0)
    sent, merged = adapter(rng), adapter(rng)
    updates = [Part(weight, adapter(rng)) for weight in (1.0, 5.0, 2.0)]

    numbers = movement(sent, updates, merged)

    together = flat(merged) - flat(sent)
    moves = [flat(u.adapter) - flat(sent) for u in updates]
    mean = np.mean([np.linalg.norm(m) ** 2 for m in moves])
    cosines = [m @ together / np.linalg.norm(m) / np.linalg.norm(together) for m in moves]
    assert numbers == {
        "client_movement": pytest.approx(mean),
        "drift_diversity": pytest.approx(mean / np.linalg.norm(together) ** 2),
        "movement_cosine": pytest.approx(np.mean(cosines)),
    }


def test_alike_updates_have_diversity_one_and_unrelated_ones_their_number() -> None:
    zero = Adapter({}, {"head": np.zeros(400, np.float32)})
    rng = np.random.default_rng(1)
    same = Adapter({}, {"head": rng.standard_normal(400).astype(np.float32)})
    assert movement(zero, [Part(1.0, same)] * 3, same) == {
        "client_movement": pytest.approx(np.linalg.norm(flat(same)) ** 2),
        "drift_diversity": pytest.approx(1.0),
        "movement_cosine": pytest.approx(1.0),
    }
    apart = [np.eye(4, 400, k=100 * k, dtype=np.float32).sum(0) for k in range(4)]
    mean = Adapter({}, {"head": np.mean(apart, axis=0)})
    numbers = movement(zero, [Part(1.0, Adapter({}, {"head": a})) for a in apart], mean)
    assert numbers["drift_diversity"] == pytest.approx(4.0)
    assert numbers["movement_cosine"] == pytest.approx(0.5)


def test_where_nothing_moves_they_are_left_out() -> None:
    rng = np.random.default_rng(2)
    sent = adapter(rng)
    assert movement(sent, [Part(1.0, sent)], sent) == {"client_movement": 0.0}
    other = adapter(rng)
    assert movement(sent, [Part(1.0, other)], sent).keys() == {"client_movement"}


@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if not m.peer_rule])
def test_methods_that_keep_the_basis_report_them(method: str) -> None:
    federation = regressions(
        quadratic_config(method=method, train__learning_rate=0.02, fltrust__root="site-0")
    )
    for number in (1, 2):
        bases_of(federation, number)
        before = federation.strategy.adapter
        updates = federation.round(number)

    if METHODS[method].moves_basis:
        assert not KEYS & federation.numbers.keys()
        return
    assert federation.numbers.keys() >= KEYS
    travelled = dict(before.arrays())
    moved = [
        sum(float(np.sum((a - travelled[n]).astype(float) ** 2)) for n, a in u.adapter.arrays())
        for u in updates
    ]
    assert federation.numbers["client_movement"] == pytest.approx(np.mean(moved), rel=1e-5)
