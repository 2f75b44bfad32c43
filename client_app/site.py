"""A site executes instructions on its own data; `LocalSite` does so in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from client_app import peer_round
from client_app.activations import Sample, Watch
from client_app.algorithms.compose import build_rule
from client_app.bases import activation_seed, decomposing, site_bases
from client_app.comparable import check_comparable
from client_app.data import SiteData
from client_app.description import describe
from client_app.evaluation import evaluate
from client_app.failures import to_failure
from client_app.feedback import encode_payloads
from client_app.folding import Folding
from client_app.gsnr import measure_gsnr
from client_app.interference import measure_interference
from client_app.local_round import train_round
from client_app.methods.base import LocalRule
from client_app.models import ResidentModel, base_loads, load_resident
from client_app.optimizers import planned_steps
from client_app.progress import Progress
from client_app.runtime import compute_settings
from client_app.state import Kept, SiteStates, site_states
from client_app.training import Report, train
from fedapp.adapter import Adapter
from fedapp.blas import single_thread
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import (
    ConfigError,
    DataError,
    HandshakeError,
    SiteStateError,
    TrainingError,
    UpdateRefused,
)
from fedapp.exchange import Action, Instruction, Metrics, Reply
from fedapp.policy import clip_updates
from fedapp.registry import METHODS
from fedapp.seeds import derive_seed

_METHOD, _FEEDBACK = "method.", "feedback."  # whose state it is: begins of names


class Site(Protocol):
    """One hospital, near or far."""

    def execute(self, instruction: Instruction) -> Reply:
        """Do what is asked. Never raises: what goes wrong is the reply's ``failure``."""


class LocalSite:
    """A site in this process, on the process's resident base model.

    Parameters
    ----------
    data : SiteData
        Its records. Each split is tokenised once, at first use, and kept.
    clip_norm : float
        Largest norm of what an update adds to what was received; 0: none, see
        `fedapp.policy.clip_updates`.
    watch : callable, optional
        Told of every step besides the progress file, see `client_app.training.train`; what it
        raises ends the work.
    keys : Path, optional
        Folder of the key of its records' digest, see `client_app.data_digest.data_digest`.
    """

    def __init__(
        self,
        data: SiteData,
        *,
        clip_norm: float = 0.0,
        watch: Report | None = None,
        keys: Path | None = None,
    ) -> None:
        self.data, self._clip_norm, self._watch, self._keys = data, clip_norm, watch, keys
        self._prepared_for: object = None
        self._prepared: dict[str, list[dict[str, Any]]] = {}

    def execute(self, instruction: Instruction) -> Reply:
        """Do what is asked, see `Site`."""
        started = time.perf_counter()
        actions: dict[Action, Callable[[_Work], Reply]] = {
            Action.DESCRIBE: self._describe,
            Action.INITIAL: self._initial,
            Action.BASES: self._bases,
            Action.PUBLISH: self._publish,
            Action.MIX: self._mix,
            Action.TRAIN: self._train,
            Action.LOCAL_ONLY: self._local_only,
            Action.EVALUATE: self._evaluate,
        }
        try:
            if instruction.site != self.data.site:
                raise HandshakeError(
                    f"this is site {self.data.site}, but the instruction is for {instruction.site}"
                )
            resident = load_resident(instruction.config, self.data.label_map)
            with (
                compute_settings(instruction.config.train, resident.device) as threads,
                Folding(resident) as folding,
            ):
                work = _Work(instruction, resident, threads, folding)
                reply = actions[instruction.action](work)
        except Exception as error:  # the one place where a site's errors become words
            failure = to_failure(error, self.data.site, instruction.round)
            reply = _reply(instruction, failure=failure)
        seconds = time.perf_counter() - started
        return replace(reply, numbers={**reply.numbers, "seconds": seconds})

    def _describe(self, work: _Work) -> Reply:
        check_comparable(
            work.resident, lambda: self._items(work, "validation"), work.config, self.data.site
        )
        items = self._items(work, "train")
        cut = sum(item["cut"] for item in items)
        unused = len(self.data.splits["train"]) - len(items)
        description = describe(
            self.data, work.resident, work.config, work.threads, cut, unused, self._keys
        )
        return _reply(work.instruction, description=description.model_dump())

    def _initial(self, work: _Work) -> Reply:
        # Always fp32: its digest is compared with the one in the description.
        adapter = work.resident.parameters.initial(work.config.seed)
        return _reply(work.instruction, payloads={"adapter": pack(adapter, "fp32")})

    def _bases(self, work: _Work) -> Reply:
        instruction, config = work.instruction, work.config
        items = self._training_items(work)
        work.resident.parameters.load(work.receive()["adapter"])
        measured = "validation" in instruction.splits
        with single_thread(), decomposing(config) as decompositions:
            sample = Sample(
                work.resident,
                self._items(work, "validation") if measured else [],
                items,
                config,
                tokens=config.dysco.tokens,
                seed=activation_seed(config, self.data.site, instruction.round),
                complete=decompositions.start,
            )
            watch = sample.watch if measured else None
            metrics, seconds = self._measure(work, "received", watch=watch)
            found = site_bases(
                sample.inputs(),
                config,
                site=self.data.site,
                round=instruction.round,
                decompositions=decompositions,
            )
        # Always fp32: rounded rows are not orthonormal.
        bases = {"bases": pack(found.bases, "fp32")}
        numbers = {**found.numbers, "evaluation_seconds": seconds}
        return _reply(instruction, payloads=bases, metrics=metrics, numbers=numbers)

    def _train(self, work: _Work) -> Reply:
        instruction, config = work.instruction, work.config
        items = self._training_items(work)
        received = work.receive()
        rule = build_rule(config, work.resident.parameters)
        codec, feedback = config.federation.codec, config.federation.error_feedback
        feedback = feedback and codec != "fp32" and bool(instruction.run)
        feedback = feedback and not self._clip_norm  # the residual would come on top of the norm
        states = _states(work, rule, received, feedback)
        kept = states.load(instruction.round) if states else Kept()
        if of_method := _taken(kept.state, _METHOD):
            rule.load_state_dict(of_method)
        del of_method  # so that the rule can let go of it while it trains
        work.resident.parameters.load(rule.start(received))
        before, seconds_before = self._measure(work, "received")
        disturbed = measure_interference(
            work.resident, items, config, received, site=self.data.site, round=instruction.round
        )
        signal = measure_gsnr(work.resident, items, rule, config)
        trained = train_round(
            work.resident,
            items,
            rule,
            config,
            received,
            instruction.settings,
            site=self.data.site,
            round=instruction.round,
            report=self._report(instruction),
        )
        payloads, factor = clip_updates(trained.payloads, received, self._clip_norm)
        after, seconds_after = self._measure(work, "personal", instruction.personal_splits)
        packed, left = encode_payloads(
            payloads,
            received,
            codec,
            _part(kept.state, _FEEDBACK) if feedback else None,
            new_basis=rule.moves_basis,
        )
        numbers = {
            **trained.numbers,
            **disturbed,
            **signal,
            **({"clip_factor": factor} if factor < 1 else {}),
            "evaluation_seconds": seconds_before + seconds_after,
        }
        state = {f"{_METHOD}{name}": value for name, value in rule.state_dict().items()}
        state |= {f"{_FEEDBACK}{name}": value for name, value in left.items()}
        if state:
            if states is None:
                raise TrainingError(
                    f"method {config.method} keeps state, and this site has no place for it"
                )
            states.save(instruction.round, state, config.federation.keep_checkpoints)
            numbers["state_round"] = float(kept.round)
        return _reply(
            instruction,
            payloads=packed,
            metrics={**before, **after},
            weight=float(len(items)),
            numbers=numbers,
        )

    def _publish(self, work: _Work) -> Reply:
        half = peer_round.publish(self._peer(work), self._report(work.instruction))
        weight = float(len(self._items(work, "train")))
        return _reply(work.instruction, metrics=half.metrics, weight=weight, numbers=half.numbers)

    def _mix(self, work: _Work) -> Reply:
        half = peer_round.mix(self._peer(work))
        return _reply(work.instruction, metrics=half.metrics, numbers=half.numbers)

    def _peer(self, work: _Work) -> peer_round.PeerSite:
        received = work.receive()
        rule = build_rule(work.config, work.resident.parameters)
        states = _states(work, rule, received)
        if states is None or not METHODS[work.config.method].peer_rule:
            raise ConfigError(f"method {work.config.method} has no exchange between sites")
        return peer_round.PeerSite(
            instruction=work.instruction,
            resident=work.resident,
            states=states,
            received=received,
            training=(
                self._training_items(work) if work.instruction.action is Action.PUBLISH else []
            ),
            validation=self._items(work, "validation"),
            clip_norm=self._clip_norm,
            measure=lambda phase, splits: self._evaluated(work, phase, splits),
        )

    def _evaluated(self, work: _Work, phase: str, splits: tuple[str, ...]) -> dict[str, Metrics]:
        instruction = replace(work.instruction, splits=splits)
        return self._measure(replace(work, instruction=instruction), phase)[0]

    def _local_only(self, work: _Work) -> Reply:
        instruction, config = work.instruction, work.config
        items = self._training_items(work)
        work.resident.parameters.load(work.receive()["adapter"])
        epochs = config.train.local_epochs * config.federation.rounds
        steps = planned_steps(config.train, len(items), epochs)
        rule = build_rule(config, work.resident.parameters).alone()
        rule.begin({}, {}, steps)
        result = train(
            work.resident,
            items,
            rule,
            config,
            seed=derive_seed(config.seed, "local-only", self.data.site),
            first_step=0,
            total_steps=steps,
            epochs=epochs,
            report=self._report(instruction),
        )
        metrics, seconds = self._measure(work, "local-only")
        return _reply(
            instruction,
            metrics=metrics,
            weight=float(len(items)),
            numbers={**result.numbers(), "evaluation_seconds": seconds},
        )

    def _evaluate(self, work: _Work) -> Reply:
        received = work.receive()
        rule = build_rule(work.config, work.resident.parameters)
        found: dict[str, float] = {}
        if rule.personal or rule.offset:  # the newest state, that of the last round included
            # A site that is to do without an offset may have no place for one either.
            states = (
                _states(work, rule, received)
                if rule.personal
                else site_states(work.instruction, received["adapter"].layout_digest())
            )
            kept = states.load(work.instruction.round + 1) if states else Kept()
            if rule.personal and not kept.round:
                raise SiteStateError(
                    f"{_keeper(work.config)} keeps part of the model at the site, and there is "
                    "none here: the site has not trained in this run, or has lost it"
                )
            if of_method := _part(kept.state, _METHOD):
                rule.load_state_dict(of_method)
            found["state_round"] = float(kept.round)
        work.resident.parameters.load(rule.start(received))
        metrics, seconds = self._measure(work, "received")
        return _reply(
            work.instruction,
            metrics=metrics,
            weight=float(len(self.data.splits.get("train", ()))),
            numbers={"evaluation_seconds": seconds, **found},
        )

    def _report(self, instruction: Instruction) -> Report:
        progress = Progress(instruction, base_loads())
        if self._watch is None:
            return progress
        watch = self._watch

        def both(step: int, steps: int, loss: float) -> None:
            progress(step, steps, loss)
            watch(step, steps, loss)

        return both

    def _training_items(self, work: _Work) -> list[dict[str, Any]]:
        items = self._items(work, "train")
        if not items:
            there = len(self.data.splits["train"])
            raise DataError(
                f"the responses of all {there} training records have zero tokens; check the "
                "column of the responses"
                if there
                else "there are no training records; check the site's data, "
                "or name the site in federation.held-out"
            )
        return items

    def _items(self, work: _Work, split: str) -> list[dict[str, Any]]:
        """The tokenised records of a split; kept until another model or length is asked for."""
        if split not in self.data.splits:
            raise DataError(
                f"there is no split '{split}'; there are {', '.join(self.data.splits) or 'none'}"
            )
        if self._prepared_for != work.config.model:
            self._prepared_for, self._prepared = work.config.model, {}
        if split not in self._prepared:
            self._prepared[split] = work.resident.task.prepare(self.data.splits[split])
        return self._prepared[split]

    def _measure(
        self,
        work: _Work,
        phase: str,
        more_splits: tuple[str, ...] = (),
        watch: Watch | None = None,
    ) -> tuple[dict[str, Metrics], float]:
        """Evaluate the live model on the splits asked for; a split without records is left out.

        ``watch`` is for the validation split.
        """
        started, metrics = time.perf_counter(), dict[str, Metrics]()
        for split in dict.fromkeys((*work.instruction.splits, *more_splits)):
            items = self._items(work, split)
            if items:
                metrics[f"{phase}/{split}"] = evaluate(
                    work.resident,
                    items,
                    work.config,
                    work.resident.device,
                    watch if split == "validation" else None,
                )
        return metrics, time.perf_counter() - started


@dataclass(frozen=True)
class _Work:
    """One instruction in execution."""

    instruction: Instruction
    resident: ResidentModel
    threads: int
    folding: Folding

    @property
    def config(self) -> RunConfig:
        return self.instruction.config

    def receive(self) -> Mapping[str, Adapter]:
        """Decode what was received, and fold what earlier rounds have learned into the base.

        Raises
        ------
        UpdateRefused
            If there is no adapter, or a payload is damaged, not finite or does not fit.
        """
        received = {name: packed.unpack() for name, packed in self.instruction.payloads.items()}
        if "adapter" not in received:
            raise UpdateRefused("the coordinator sent no adapter", reason="empty")
        for name, adapter in received.items():
            if not adapter.is_finite():
                raise UpdateRefused(
                    f"the coordinator's '{name}' holds NaN or Inf", reason="non-finite"
                )
        self.folding.apply(received.get("folded"))
        return received


def _states(
    work: _Work, rule: LocalRule, received: Mapping[str, Adapter], feedback: bool = False
) -> SiteStates | None:
    """Where the site keeps what the rule, or error feedback, needs in its next round."""
    keeper = _keeper(work.config) if rule.keeps_state else ""
    needed_by = keeper or ("federation.error-feedback" if feedback else "")
    states = site_states(work.instruction, received["adapter"].layout_digest(), needed_by)
    if keeper and states is None:
        raise ConfigError(
            f"{keeper} keeps something at the site between its rounds, and a run without an "
            "identity (Flower's own loop) has no place for it; start the run with `fedapp run`"
        )
    return states


def _keeper(config: RunConfig) -> str:
    return f"method {config.method} with algorithm {config.federation.algorithm}"


def _part(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _taken(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    part = _part(state, prefix)
    for name in part:
        del state[f"{prefix}{name}"]
    return part


def _reply(instruction: Instruction, **fields: Any) -> Reply:
    return Reply(
        site=instruction.site, round=instruction.round, action=instruction.action, **fields
    )
