"""One federation with faulty sites in one process: real training, attacks and rules, no messages.

Not a benchmark itself. What differs from `fedapp run`: colluding attackers see the honest models of
the round in memory, and where sites exchange directly a faulty one begins each round with the mean
of the honest models, which no real attacker knows better; it runs no rule of its own.

What two runs of one federation have in common, such as the training of the first round, is computed
once: a site's training depends on its records, the round, and the model that it begins with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeVar

from benchmarks.frozen import train_last_layer
from client_app.algorithms.compose import build_rule
from client_app.data import load_sites
from client_app.evaluation import evaluate
from client_app.faults import strengths
from client_app.layers import last_layers, trained_shapes
from client_app.local_round import train_round
from client_app.methods.base import LocalRule
from client_app.methods.fedavg import FedAvg
from client_app.models import load_resident
from client_app.runtime import compute_settings
from client_app.views import Viewer
from fedapp.adapter import Adapter
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import TrainingError
from fedapp.faults import COLLUDING, planned
from fedapp.injector import Situation, inject
from fedapp.mixing import combine
from fedapp.peer_rules.base import Context, Neighbour, View
from fedapp.registry import METHODS, load_half
from fedapp.state import State
from server_app.app import build_strategy
from server_app.updates import Update

Models = dict[str, Adapter]
Found = TypeVar("Found")
MOST_REMEMBERED = 2000


class Memory:
    """What was computed already; the least recently used is forgotten first."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], Found]) -> Found:
        """Return what is known by a key, or make it."""
        found: Found = self._known.pop(key) if key in self._known else make()
        self._known[key] = found
        if len(self._known) > MOST_REMEMBERED:
            self._known.pop(next(iter(self._known)))
        return found


@dataclass
class Shares:
    """How many of the honest and of the faulty models were accepted, and what these weighed."""

    honest: list[float] = field(default_factory=list)
    faulty: list[float] = field(default_factory=list)
    faulty_weight: list[float] = field(default_factory=list)

    def means(self) -> dict[str, float | None]:
        """Return the means over sites and rounds; None where there was nothing to accept."""
        return {
            name: fmean(values) if values else None
            for name, values in (
                ("accepted_honest", self.honest),
                ("accepted_faulty", self.faulty),
                ("faulty_weight", self.faulty_weight),
            )
        }


class Federation:
    """Sites with their records prepared, on one resident model; for many runs one after the other.

    Parameters
    ----------
    config : RunConfig
        Its data, model, training and ``p2p`` settings, which all runs have in common; what they
        differ in comes later. Pairs of LoRA may be in the last layer of a BERT, see `frozen`.
    """

    def __init__(self, config: RunConfig) -> None:
        sites = load_sites(config)
        labels = next(iter(sites.values())).label_map
        self.resident = load_resident(config, labels)
        if config.model.trainable == "lora":
            train_last_layer(self.resident.model)
        self.trainings, self.views = Memory(), Memory()
        prepare = self.resident.task.prepare
        self.items = {
            name: {split: prepare(records) for split, records in data.splits.items()}
            for name, data in sites.items()
        }
        self.sites = sorted(sites)
        self.layers = last_layers(trained_shapes(self.resident))

    def run(self, config: RunConfig) -> dict[str, Any]:
        """Run one federation to its end.

        Returns
        -------
        dict
            ``accuracy`` (test, by honest site), ``validation`` (their mean on those records), the
            means of `Shares`, ``cpu_seconds``.
        """
        started = time.process_time()
        with compute_settings(config.train, self.resident.device):
            models, shares = _Run(self, config).rounds()
            scores = {
                split: {site: self._accuracy(config, site, split, m) for site, m in models.items()}
                for split in ("validation", "test")
            }
        return {
            "accuracy": scores["test"],
            "validation": fmean(scores["validation"].values()),
            **shares.means(),
            "cpu_seconds": round(time.process_time() - started, 2),
        }

    def _accuracy(self, config: RunConfig, site: str, split: str, model: Adapter) -> float:
        self.resident.parameters.load(model)
        items = self.items[site][split]
        try:
            return evaluate(self.resident, items, config, self.resident.device)["accuracy"]
        except TrainingError:  # outputs that are not finite: a model of no use at all
            return 0.0


class _Run:
    """The rounds of one run."""

    def __init__(self, federation: Federation, config: RunConfig) -> None:
        self.at, self.config = federation, config
        self.faulty = [site for site in federation.sites if site in config.faults.sites]
        self.honest = [site for site in federation.sites if site not in self.faulty]
        self.shares = Shares()
        self.states: dict[str, State] = {}
        self.sent_before: dict[str, list[Adapter]] = {site: [] for site in self.faulty}
        self.own: Models = {}  # models of its own that a method trains beside the shared one
        self.peer_rule = METHODS[config.method].peer_rule

    def rounds(self) -> tuple[Models, Shares]:
        """Return every honest site's model in the end."""
        initial = self.at.resident.parameters.initial(self.config.seed)
        models = dict.fromkeys(self.at.sites, initial)
        strategy = None
        if not self.peer_rule:
            strategy = build_strategy(self.config)
            strategy.begin(initial)
        for round in range(1, self.config.federation.rounds + 1):
            trained = {site: self._train(site, models[site], round) for site in self.at.sites}
            sent = self._sent(trained, models, round)
            if strategy is None:
                models = self._exchange(trained, sent, round)
            else:
                updates = [
                    Update(site, float(len(self.at.items[site]["train"])), pack(model))
                    for site, model in sent.items()
                ]
                told = strategy.aggregate(round, updates)
                models = dict.fromkeys(self.at.sites, told.adapter)
                self._count(told.diagnostics)
        return {site: self.own.get(site, models[site]) for site in self.honest}, self.shares

    def _train(self, site: str, start: Adapter, round: int) -> Adapter:
        """Train by the product's loop and the method's rule."""
        config, parameters = self.config, self.at.resident.parameters
        if planned(config, site, round) in COLLUDING:
            return start  # it sends what it makes of the others' models
        rule = build_rule(self._central, parameters)
        if type(rule) is FedAvg:
            key = (site, round, start.digest())
            return self.at.trainings.get(key, lambda: self._fit(rule, site, start, round))
        if state := self.states.get(site):
            rule.load_state_dict(state)
        trained = self._fit(rule, site, start, round)
        self.states[site] = rule.state_dict()
        if rule.keeps_state:
            self.own[site] = parameters.read()
        return trained

    def _fit(self, rule: LocalRule, site: str, start: Adapter, round: int) -> Adapter:
        parameters, received = self.at.resident.parameters, {"adapter": start}
        parameters.load(rule.start(received))
        trained = train_round(
            self.at.resident,
            self.at.items[site]["train"],
            rule,
            self._central,
            received,
            {},
            site=site,
            round=round,
        )
        return trained.payloads["adapter"]

    @property
    def _central(self) -> RunConfig:
        """The settings by which a site trains: plainly, where it is the exchange that differs."""
        if not self.peer_rule:
            return self.config
        return self.config.model_copy(update={"method": "fedavg"})

    def _sent(self, trained: Models, starts: Mapping[str, Adapter], round: int) -> Models:
        """Return what every site sends, without models that any receiver would refuse."""
        known = [trained[site] for site in self.honest]
        sent = dict(trained)
        for site in self.faulty:
            head, hidden = self.at.layers
            situation = Situation(
                model=trained[site],
                start=starts[site],
                known=known,
                sent=self.sent_before[site],
                head=head,
                hidden=hidden,
                seed=self.config.seed,
                site=site,
                round=round,
            )
            attack = planned(self.config, site, round)
            sent[site] = inject(attack, situation, strengths(self.config))
            self.sent_before[site].append(trained[site])
        return {site: model for site, model in sent.items() if model.is_finite()}

    def _exchange(self, trained: Models, sent: Models, round: int) -> Models:
        """Let every honest site mix what the others sent."""
        rule_class, models = load_half(self.peer_rule), {}
        degrees = dict.fromkeys(self.at.sites, len(self.at.sites) - 1)
        for site in self.honest:
            view, loss = self._viewer(site)
            context = Context(self.config, site, round, view, loss, degrees)
            others = [Neighbour(name, sent[name]) for name in sorted(sent) if name != site]
            mixed = rule_class(self.config).mix(trained[site], others, context)
            models[site] = mixed.model
            for verdict in mixed.verdicts:
                group = self.shares.faulty if verdict.peer in self.faulty else self.shares.honest
                group.append(float(verdict.accepted))
            if self.faulty:
                self.shares.faulty_weight.append(
                    sum(v.weight for v in mixed.verdicts if v.peer in self.faulty)
                )
        return {**models, **dict.fromkeys(self.faulty, _mean(list(models.values())))}

    def _viewer(self, site: str) -> tuple[Callable[[Adapter], View], Callable[[Adapter], float]]:
        viewer = Viewer(self.at.resident, self.at.items[site]["validation"], self.config, site)
        remembered = self.at.views.get
        return (
            lambda model: remembered((site, model.digest()), lambda: viewer(model)),
            lambda model: remembered((site, model.digest(), "loss"), lambda: viewer.loss(model)),
        )

    def _count(self, diagnostics: Mapping[str, float]) -> None:
        for group, name in (
            (self.shares.honest, "accepted_honest" if self.faulty else "accepted"),
            (self.shares.faulty, "accepted_faulty"),
        ):
            if name in diagnostics:
                group.append(diagnostics[name])


def _mean(models: Sequence[Adapter]) -> Adapter:
    return combine([(1 / len(models), model) for model in models], "factors")[0]
