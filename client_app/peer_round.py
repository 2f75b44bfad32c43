"""A site's round without a server: train and publish; then score, mix and evaluate.

The engine of every method in which sites mix their neighbours' models. What happens between the two
halves, the exchange, is the affair of whoever runs the site's node: it takes what `publish` has put
in the site's mailbox and puts there what `mix` reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client_app.algorithms.compose import build_rule
from client_app.local_round import train_round
from client_app.state import Kept, SiteStates
from client_app.training import Report
from client_app.views import Viewer
from fedapp.adapter import Adapter
from fedapp.blas import single_thread
from fedapp.errors import SiteStateError, TrainingError, UpdateRefused
from fedapp.exchange import Instruction, Metrics, Reply
from fedapp.gossip.ledger import Heard, Ledger
from fedapp.mailbox import Delivery, Letter, Mailbox
from fedapp.peer_rules.base import Context, Mixed, Neighbour, PeerRule, Verdict
from fedapp.peer_rules.unmixable import mix_usable
from fedapp.peer_update import read_letter, terms_digest, write_letter
from fedapp.policy import clip_updates
from fedapp.registry import METHODS, load_half
from fedapp.reported import check_reported

if TYPE_CHECKING:
    from client_app.models import ResidentModel

Items = Sequence[Mapping[str, Any]]
Measure = Callable[[str, tuple[str, ...]], dict[str, Metrics]]  # phase, splits
_LONGEST_REASON = 300
_STATE = "method."  # what `LocalSite` gives to the method's rule


@dataclass(frozen=True)
class PeerSite:
    """What a round needs of its site.

    Attributes
    ----------
    instruction : Instruction
    resident : ResidentModel
    states : SiteStates
    received : mapping of str to Adapter
        ``"adapter"``: the seeded first model.
    training, validation : sequence of mapping
        Prepared records; those for training are needed to publish alone.
    measure : callable
        Evaluates the live model on splits.
    clip_norm : float
        Largest norm of what a published model adds to the one that the round began with; 0: none.
    """

    instruction: Instruction
    resident: ResidentModel
    states: SiteStates
    received: Mapping[str, Adapter]
    training: Items
    validation: Items
    measure: Measure
    clip_norm: float = 0.0

    @property
    def mailbox(self) -> Mailbox:
        """The site's mailbox in this run."""
        return Mailbox(self.states.folder / "mail")

    @property
    def terms(self) -> str:
        """What peers must have alike with this site."""
        config, resident = self.instruction.config, self.resident
        initial = resident.parameters.initial(config.seed)
        labels = getattr(resident.task, "label_map", ())
        return terms_digest(initial, resident.base_digest, labels, config.federation.codec)


@dataclass(frozen=True)
class Half:
    """What one half of a round reports."""

    metrics: dict[str, Metrics]
    numbers: dict[str, float]


def publish(at: PeerSite, report: Report | None = None) -> Half:
    """Train the site's own model and put it in the mailbox.

    The model that the round began with is evaluated in round 1 alone: later it is the one that was
    evaluated at the end of the site's last round.

    Raises
    ------
    TrainingError
        If a loss or the model is not finite.
    SiteStateError
        If state or mailbox cannot be written.
    """
    instruction, config, resident = at.instruction, at.instruction.config, at.resident
    rule = build_rule(config, resident.parameters)
    kept = at.states.load(instruction.round)
    state = _of_method(kept)
    rule.load_state_dict(state)
    start = rule.start(at.received)
    resident.parameters.load(start)
    known = state.get("metrics") or at.measure("received", ("validation",))
    training = train_round(
        resident,
        at.training,
        rule,
        config,
        at.received,
        instruction.settings,
        site=instruction.site,
        round=instruction.round,
        report=report,
    )
    trained = training.payloads["adapter"]
    # Should nothing come of the second half, the site goes on alone. Where there is a letter there
    # is this state.
    _save(at, {"trained": trained, "model": trained, "metrics": {}})
    shown, factor = clip_updates({"model": trained}, {"model": start}, at.clip_norm)
    letter = write_letter(instruction.site, shown["model"], at.terms, config.federation.codec)
    at.mailbox.send(instruction.round, letter)
    clipped = {"clip_factor": factor} if factor < 1 else {}
    return Half(
        {f"received/{split}": metrics for split, metrics in _splits(known).items()},
        {**training.numbers, **clipped, "state_round": float(kept.round)},
    )


def mix(at: PeerSite) -> Half:
    """Score what came, mix it with the model that was trained, evaluate, and write the ledger.

    Raises
    ------
    SiteStateError
        If the site has not trained in this round, or nothing was delivered.
    TrainingError
        If the outputs of the model that was trained are not finite.
    """
    instruction = at.instruction
    kept = at.states.load(instruction.round + 1)
    delivery = at.mailbox.received(instruction.round)
    if kept.round != instruction.round or delivery is None:
        raise SiteStateError(
            "the model that the site trained in this round, or what its node has gathered, is not "
            "there; repeat the round"
        )
    own: Adapter = _of_method(kept)["trained"]
    neighbours, refused = _open(at, own, delivery)
    mixed, metrics, seconds = _mix(at, own, neighbours, delivery)
    _save(at, {"trained": own, "model": mixed.model, "metrics": _splits(metrics)})
    _record(at, delivery, mixed, refused)
    accepted = sum(verdict.accepted for verdict in mixed.verdicts)
    return Half(
        metrics,
        {
            **mixed.numbers,
            "own_weight": mixed.own_weight,
            "neighbours_heard": float(len(delivery.letters)),
            "neighbours_accepted": float(accepted),
            "scoring_seconds": seconds,
        },
    )


def _open(
    at: PeerSite, own: Adapter, delivery: Delivery
) -> tuple[list[Neighbour], dict[str, UpdateRefused]]:
    """Decode what came; return the models, and why others are none."""
    config, terms = at.instruction.config, at.terms
    neighbours, refused = [], {}
    for letter in delivery.letters:
        try:
            model = read_letter(
                letter,
                round=at.instruction.round,
                like=own,
                terms=terms,
                codec=config.federation.codec,
                max_bytes=int(config.federation.max_payload_mb * 1e6),
            )
        except UpdateRefused as error:
            refused[letter.origin] = error
        else:
            neighbours.append(Neighbour(letter.origin, model))
    return neighbours, refused


def _mix(
    at: PeerSite, own: Adapter, neighbours: Sequence[Neighbour], delivery: Delivery
) -> tuple[Mixed, dict[str, Metrics], float]:
    """Ask the method's rule; return also the mixed model's metrics, and the seconds without them.

    A neighbour that would spoil the mix is refused, see `fedapp.peer_rules.unmixable`.
    """
    instruction, config = at.instruction, at.instruction.config
    rule: PeerRule = load_half(METHODS[config.method].peer_rule)(config)
    viewer = Viewer(at.resident, at.validation, config, instruction.site)
    site, round = instruction.site, instruction.round
    context = Context(config, site, round, viewer, viewer.loss, delivery.degrees)
    evaluating = 0.0

    def judge(model: Adapter) -> dict[str, Metrics]:
        nonlocal evaluating
        began = time.perf_counter()
        try:
            metrics = _evaluate(at, model)
            if model is not own:  # finite, and still what no coordinator would take
                _check(at, metrics)
            return metrics
        finally:
            evaluating += time.perf_counter() - began

    started = time.perf_counter()
    with single_thread():  # of numpy's BLAS; torch's forward passes have libraries of their own
        mixed, metrics = mix_usable(rule, own, neighbours, context, judge)
    return mixed, metrics, time.perf_counter() - started - evaluating


def _evaluate(at: PeerSite, model: Adapter) -> dict[str, Metrics]:
    at.resident.parameters.load(model)
    return at.measure("personal", ("validation", *at.instruction.personal_splits))


def _check(at: PeerSite, metrics: Mapping[str, Metrics]) -> None:
    """Raise TrainingError if metrics are such as are refused where they are reported."""
    about, config = at.instruction, at.instruction.config
    reply = Reply(about.site, about.round, about.action, metrics=dict(metrics))
    try:
        check_reported(reply, config.model.task)
    except UpdateRefused as error:
        raise TrainingError(error.message) from None


def _record(
    at: PeerSite, delivery: Delivery, mixed: Mixed, refused: Mapping[str, UpdateRefused]
) -> None:
    """Append the round to the site's ledger."""
    verdicts = {verdict.peer: verdict for verdict in mixed.verdicts}
    heard = [
        _heard(letter, verdicts.get(letter.origin), refused.get(letter.origin))
        for letter in delivery.letters
    ]
    instruction = at.instruction
    ledger = Ledger(at.states.folder / "ledger.jsonl", instruction.run, instruction.site)
    try:
        ledger.record(
            instruction.round,
            heard,
            time=time.time(),
            missing=delivery.missing,
            own_digest=delivery.own_digest or None,
            own_weight=mixed.own_weight,
            traffic=delivery.traffic,
        )
    finally:
        ledger.close()


def _heard(letter: Letter, verdict: Verdict | None, error: UpdateRefused | None) -> Heard:
    """Return the ledger's entry of one neighbour: what a gate, or validation before it, said."""
    reason = f"{error.reason}: {error.message}"[:_LONGEST_REASON] if error else ""
    if verdict is not None:
        reason = ", ".join(verdict.refused_by)
    return Heard(
        origin=letter.origin,
        digest=letter.digest,
        size=len(letter.payload),
        scores=dict(verdict.scores) if verdict else {},
        accepted=verdict is not None and verdict.accepted,
        reason=reason,
        weight=verdict.weight if verdict else 0.0,
    )


def _of_method(kept: Kept) -> dict[str, Any]:
    return {name.removeprefix(_STATE): value for name, value in kept.state.items()}


def _save(at: PeerSite, state: Mapping[str, Any]) -> None:
    named = {f"{_STATE}{name}": value for name, value in state.items()}
    at.states.save(at.instruction.round, named, at.instruction.config.federation.keep_checkpoints)


def _splits(metrics: Mapping[str, Metrics]) -> dict[str, dict[str, float]]:
    """Return the metrics on validation records, by split alone."""
    return {
        key.rpartition("/")[2]: dict(table)
        for key, table in metrics.items()
        if key.rpartition("/")[2] == "validation"
    }
