"""Sites whose loss is a quadratic, trained by the product's own loop, rules and strategies.

Only the model and the transport are make-believe: the local rule, the optimiser, the validation of
what is sent, the merge, the algorithm and what both sides keep are the real ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from client_app.algorithms.compose import build_rule
from client_app.local_round import train_round
from client_app.parameters import AdapterParameters, LivePair
from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.exchange import Action, Reply
from fedapp.state import State, join_state, split_state
from server_app.app import build_strategy
from server_app.strategies.base import BaseStrategy
from server_app.training_round import validate
from server_app.updates import Update

SGD = {
    "method": "fedavg",
    "train.optimizer": "sgd",
    "train.momentum": 0.0,
    "train.weight-decay": 0.0,
    "train.clip-norm": 0.0,
    "train.learning-rate": 0.1,
    "train.batch-size": 1,
    "train.local-epochs": 1,
    "lora.rank": 2,
    "lora.alpha": 2.0,
    "federation.rounds": 1000,
}
"""Plain SGD; every step has the whole loss, so that a site takes as many steps as it has items."""

UNTOLD = ("train_loss", "training_seconds")
"""What a site tells of its training that no coordinator computes with."""


def quadratic_config(**flat: Any) -> RunConfig:
    """Return settings on top of `SGD`; keyword arguments use ``__`` for dots."""
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in flat.items()}
    return RunConfig.from_flat({**SGD, **given})


def parameters_of(
    pairs: Mapping[str, LoraPair], tensors: Mapping[str, np.ndarray]
) -> AdapterParameters:
    """Return live parameters of these shapes without a PEFT model, and of these initial numbers."""
    live = AdapterParameters.__new__(AdapterParameters)
    live.pairs = {
        name: LivePair(
            nn.Parameter(torch.tensor(pair.b_mr)),
            nn.Parameter(torch.tensor(pair.a_rn)),
            pair.scaling,
        )
        for name, pair in sorted(pairs.items())
    }
    live.tensors = {n: nn.Parameter(torch.tensor(t)) for n, t in sorted(tensors.items())}
    first = live.read()
    live.initial = lambda seed: first  # type: ignore[method-assign]
    return live


class Head:
    """``1/2 (w - b)^T H (w - b)`` of a head w alone, ``head.weight``."""

    def __init__(self, h_dd: np.ndarray, b_d: np.ndarray) -> None:
        self.h_dd, self.b_d = torch.tensor(h_dd).float(), torch.tensor(b_d).float()

    def __call__(self, live: AdapterParameters) -> torch.Tensor:
        gap = live.tensors["head.weight"] - self.b_d
        return 0.5 * gap @ self.h_dd @ gap


class Regression:
    """``1/2 ||(s B A - T) X||^2 / tokens + 1/2 ||head - h||^2``: one pair ``q`` and a head."""

    def __init__(self, target_mn: np.ndarray, x_nt: np.ndarray, head_d: np.ndarray) -> None:
        self.target_mn, self.x_nt = torch.tensor(target_mn).float(), torch.tensor(x_nt).float()
        self.head_d = torch.tensor(head_d).float()

    def __call__(self, live: AdapterParameters) -> torch.Tensor:
        b_mr, a_rn, scaling = live.pairs["q"]
        gap = (scaling * b_mr @ a_rn - self.target_mn) @ self.x_nt
        head = live.tensors["head.weight"] - self.head_d
        return 0.5 * gap.square().sum() / self.x_nt.shape[1] + 0.5 * head.square().sum()


@dataclass
class QuadraticSite:
    """A site with a loss, a weight in the merge, and a number of local steps."""

    name: str
    loss: Any
    examples: float
    steps: int
    live: AdapterParameters
    kept: list[tuple[Any, Any]] = field(default_factory=list)  # as on disk, a state a round
    started: Adapter = field(
        default_factory=lambda: Adapter({})
    )  # what the last training began with

    def train(self, strategy: BaseStrategy, round: int) -> Reply:
        """Do what `LocalSite` does in a training round, keep state, and return the reply."""
        config = strategy.config
        received = {
            name: pack(adapter).unpack()
            for name, adapter in strategy.sends(round, self.name).items()
        }
        rule = build_rule(config, self.live)
        if self.kept:
            tensors, described = self.kept[-1]
            rule.load_state_dict(join_state(tensors, described))
        self.started = rule.start(received)
        self.live.load(self.started)
        loss = SimpleNamespace(
            collate=lambda items: {}, loss=lambda model, batch: self.loss(self.live)
        )
        resident: Any = SimpleNamespace(
            model=nn.Module(), task=loss, parameters=self.live, device=torch.device("cpu")
        )
        items = [{"length": 1}] * self.steps
        trained = train_round(
            resident,
            items,
            rule,
            config,
            received,
            strategy.sends_settings(round, self.name),
            site=self.name,
            round=round,
        )
        if state := rule.state_dict():
            self.kept.append(split_state(state))
        return Reply(
            self.name,
            round,
            Action.TRAIN,
            payloads={name: pack(adapter) for name, adapter in trained.payloads.items()},
            weight=self.examples,
            numbers={n: v for n, v in trained.numbers.items() if n not in UNTOLD},
        )


@dataclass
class QuadraticFederation:
    """A strategy and its sites, without messages."""

    config: RunConfig
    sites: list[QuadraticSite]
    initial: Adapter

    def __post_init__(self) -> None:
        self.strategy = build_strategy(self.config)
        records = {site.name: int(site.examples) for site in self.sites}
        self.strategy.roster = SimpleNamespace(  # type: ignore[assignment]
            sites=list(records),
            training_records=records.__getitem__,
            reference=SimpleNamespace(initial_digest=self.initial.digest()),
        )
        self.strategy.begin(self.initial)

    def round(self, number: int, sampled: Sequence[str] | None = None) -> list[Update]:
        """Train the sampled sites (all by default), validate and merge; return the updates."""
        chosen = [site for site in self.sites if sampled is None or site.name in sampled]
        updates = [
            validate(self.strategy, number, site.train(self.strategy, number)) for site in chosen
        ]
        self.numbers = self.strategy.aggregate(number, updates).diagnostics
        return updates

    @property
    def head(self) -> np.ndarray:
        """The global head in fp64."""
        return self.strategy.adapter.tensors["head.weight"].astype(np.float64)


def heads(
    config: RunConfig,
    losses: Sequence[tuple[np.ndarray, np.ndarray]],
    examples: Sequence[float],
    steps: Sequence[int],
) -> QuadraticFederation:
    """Return a federation whose sites have the losses ``(H, b)`` of a head that starts at 0."""
    size = len(losses[0][1])
    start = {"head.weight": np.zeros(size, np.float32)}
    sites = [
        QuadraticSite(f"site-{k}", Head(*loss), examples[k], steps[k], parameters_of({}, start))
        for k, loss in enumerate(losses)
    ]
    return QuadraticFederation(config, sites, Adapter({}, start))


def regressions(config: RunConfig, count: int = 3, seed: int = 0) -> QuadraticFederation:
    """Return a federation of `Regression` sites with targets and inputs of their own."""
    rng = np.random.default_rng(seed)
    m, n, rank = 6, 5, config.lora.rank

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    scaling = config.lora.alpha / rank
    pairs = {"q": LoraPair(np.zeros((m, rank), np.float32), draw(rank, n), scaling)}
    tensors = {"head.weight": draw(4)}
    shared_mn = draw(m, n)
    sites = [
        QuadraticSite(
            f"site-{k}",
            Regression(shared_mn + 0.5 * draw(m, n), draw(n, 12), draw(4)),
            float(10 + 5 * k),
            3 + 2 * k,
            parameters_of(pairs, tensors),
        )
        for k in range(count)
    ]
    return QuadraticFederation(config, sites, Adapter(pairs, tensors))


def bases_of(federation: QuadraticFederation, number: int) -> None:
    """Do the first phase of a round where the method has one, with random orthonormal rows."""
    layout = federation.strategy.basis_layout()
    if layout is None:
        return
    rng = np.random.default_rng(number)
    bases = {
        site.name: Adapter(
            {},
            {
                name: np.linalg.qr(rng.standard_normal(shape[::-1]))[0].T.astype(np.float32)
                for name, shape in layout["tensors"].items()
            },
        )
        for site in federation.sites
    }
    federation.strategy.take_bases(number, bases, sorted(bases))


def snapshot(strategy: BaseStrategy) -> State:
    """Return the strategy's state as a checkpoint would give it back."""
    return join_state(*split_state(strategy.state_dict()))
