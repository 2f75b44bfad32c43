"""Every algorithm under every method, by configuration alone."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from quadratic import bases_of, quadratic_config, regressions, snapshot

from client_app.algorithms.base import LocalAlgorithm
from client_app.algorithms.compose import Composed, build_rule
from client_app.methods.base import LocalRule
from fedapp.config import RunConfig, settings
from fedapp.errors import ConfigError
from fedapp.registry import ALGORITHMS, METHODS, load_half
from server_app.app import build_strategy
from server_app.sampling import fewest_updates
from server_app.strategies.base import BaseStrategy

WITH_A_COORDINATOR = [name for name, method in METHODS.items() if not method.peer_rule]


def test_every_algorithm_is_a_setting() -> None:
    (setting,) = [s for s in settings() if s.key == "federation.algorithm"]
    assert setting.constraint == " | ".join(ALGORITHMS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("method", WITH_A_COORDINATOR)
def test_a_few_rounds_of_every_pair(method: str, algorithm: str) -> None:
    pair = {"method": method, "federation__algorithm": algorithm}
    if ALGORITHMS[algorithm].fixed_basis and METHODS[method].moves_basis:
        with pytest.raises(ConfigError, match=f"{algorithm} squares .*{method} gives the pairs"):
            quadratic_config(**pair)
        return
    config = quadratic_config(
        **pair, train__learning_rate=0.02, fedavgm__momentum=0.5, fltrust__root="site-0"
    )
    two = ["site-0", "site-2"] if fewest_updates(config) < 3 else None
    federation = regressions(config)
    for number, chosen in enumerate([None, two, None], start=1):
        bases_of(federation, number)
        before = snapshot(federation.strategy)
        updates = federation.round(number, chosen)

    assert federation.strategy.adapter.is_finite()
    restored = build_strategy(config)
    restored.roster = federation.strategy.roster
    restored.load_state_dict(before)
    federation.strategy.load_state_dict(before)
    ends = []
    for strategy in (federation.strategy, restored):
        federation.strategy = strategy
        bases_of(federation, number)
        strategy.aggregate(number, updates)
        ends.append({k: _comparable(v) for k, v in snapshot(strategy).items()})
    assert ends[0] == ends[1]


def _comparable(value: Any) -> Any:
    return value.digest() if hasattr(value, "digest") else value


@pytest.mark.parametrize("method", METHODS)
def test_both_halves_of_a_method_agree(method: str) -> None:
    config = quadratic_config(method=method)
    federation = regressions(config)
    rule = build_rule(config, federation.sites[0].live)

    for name, _ in federation.initial.arrays():
        assert rule.contributes(name) == federation.strategy.contributes(name), name
    assert rule.moves_basis == federation.strategy.moves_basis == METHODS[method].moves_basis
    assert (federation.strategy.basis_layout() is not None) == METHODS[method].bases
    assert rule.personal == bool(METHODS[method].personal)
    assert rule.offset == bool(METHODS[method].offset)
    recompose = type(federation.strategy).recompose is not BaseStrategy.recompose
    assert recompose == federation.strategy.moves_basis


def test_the_rule_of_a_method_and_an_algorithm_passes_every_hook_on() -> None:
    hooks = {n for n, _ in inspect.getmembers(LocalRule, inspect.isfunction) if n[0] != "_"}
    for name in hooks:
        assert name in vars(Composed), f"Composed does not pass {name} on"
    flags = {n for n, v in vars(LocalRule).items() if isinstance(v, bool)}
    made = Composed(LocalRule(RunConfig(), None), LocalAlgorithm(RunConfig(), None, None))  # type: ignore[arg-type]
    assert flags <= set(vars(made))


def test_the_method_comes_first_and_both_states_come_back() -> None:
    calls: list[str] = []

    def noting(kind: type, name: str) -> Any:
        class Noting(kind):  # type: ignore[misc]
            def transform_gradients(self) -> None:
                calls.append(name)

            def state_dict(self) -> dict[str, Any]:
                return {"x": name}

            def load_state_dict(self, state: Any) -> None:
                calls.append(f"{name} {dict(state)}")

        return Noting

    rule = noting(LocalRule, "method")(RunConfig(), None)
    composed = Composed(rule, noting(LocalAlgorithm, "algorithm")(RunConfig(), None, rule))

    composed.transform_gradients()
    composed.load_state_dict(composed.state_dict())

    assert calls == [
        "method",
        "algorithm",
        "method {'x': 'method'}",
        "algorithm {'x': 'algorithm'}",
    ]


def test_fedavg_adds_nothing_to_a_rule() -> None:
    rule = build_rule(RunConfig(), None)  # type: ignore[arg-type]
    assert type(rule) is load_half(METHODS["subspace-reg"].client)
