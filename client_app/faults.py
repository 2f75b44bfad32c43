"""A site that a run declares faulty: it trains, and sends something else than its update.

The only place where an attack happens. An honest site is a plain `LocalSite`, which knows nothing
of this module; a run that declares no site faulty never makes a `FaultySite`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from client_app.data import SiteData
from client_app.failures import to_failure
from client_app.feedback import encode_payloads
from client_app.layers import last_layers, trained_shapes
from client_app.models import load_resident
from client_app.peer_round import PeerSite
from client_app.site import LocalSite, Site
from client_app.spy import Spy, model_of
from client_app.state import site_states
from fedapp import attacks
from fedapp.adapter import Adapter
from fedapp.config import RunConfig, Scalar
from fedapp.errors import ConfigError
from fedapp.exchange import Action, Instruction, Reply
from fedapp.faults import COLLUDING, Attack, planned, rehearsal
from fedapp.injector import Situation, Strengths, inject
from fedapp.mailbox import Letter
from fedapp.peer_update import read_letter, write_letter

log = logging.getLogger(__name__)

ALLOWED = "allow-faults"
"""What a deployed node's configuration must say before it takes part in a rehearsal."""


def check_allowed(config: RunConfig, node_config: Mapping[str, Scalar]) -> None:
    """Refuse a rehearsal of attacks at a deployed node, faulty or honest, that does not expect it.

    Raises
    ------
    ConfigError
        Unless ``allow-faults`` is true in the node's own configuration.
    """
    if config.faults.sites and node_config.get(ALLOWED) is not True:
        raise ConfigError(
            f"this run is a rehearsal in which {', '.join(config.faults.sites)} attack(s) on "
            "purpose (faults.sites), and this node takes part in none; leave faults.sites empty, "
            f"or start the SuperNode with --node-config 'site=\"NAME\" {ALLOWED}=true'"
        )


def with_faults(sites: Mapping[str, Site], config: RunConfig) -> dict[str, Site]:
    """Return the sites of this process with the declared ones replaced by faulty ones.

    Parameters
    ----------
    sites : mapping of str to Site
        In a simulation all sites, so that colluding attackers know the honest ones.
    config : RunConfig
    """
    if not config.faults.sites:
        return dict(sites)
    dishonest = {*config.faults.sites, *config.federation.held_out}
    honest = {name: site for name, site in sites.items() if name not in dishonest}
    spy = Spy(honest)
    return {
        name: FaultySite(site.data, spy)
        if name in config.faults.sites and isinstance(site, LocalSite)
        else site
        for name, site in sites.items()
    }


class FaultySite(LocalSite):
    """A site that is faulty on purpose.

    It trains and reports as an honest one; of its payloads the adapter is replaced.

    Parameters
    ----------
    data : SiteData
    spy : Spy
        Shared by the faulty sites of the process.
    """

    def __init__(self, data: SiteData, spy: Spy) -> None:
        super().__init__(data)
        self._spy = spy
        self._misled: LocalSite | None = None

    def execute(self, instruction: Instruction) -> Reply:
        """Do what is asked, and attack where the settings say so."""
        attack = planned(instruction.config, instruction.site, instruction.round)
        if instruction.action not in (Action.TRAIN, Action.PUBLISH):
            return _marked(super().execute(instruction), instruction.config)
        try:
            if attack == "label-flip":
                reply = self._mislabelled().execute(instruction)
            else:
                reply = super().execute(instruction)
            if reply.failure is None and instruction.action is Action.TRAIN:
                reply = self._attacked(attack, instruction, reply)
            return reply
        except Exception as error:
            failure = to_failure(error, self.data.site, instruction.round)
            return Reply(instruction.site, instruction.round, instruction.action, failure=failure)

    def _publish(self, work: Any) -> Reply:
        """Publish, and put something else into the mailbox before its node looks there."""
        reply = super()._publish(work)
        at, round = self._peer(work), work.instruction.round
        letter = at.mailbox.outgoing(round)
        if letter is None:
            return reply
        attack = planned(work.config, self.data.site, round)
        model = _opened(at, letter, round)
        kept = at.states.load(round).state  # of the last round: what this one began with
        start = kept.get("method.model", at.received["adapter"])
        known = self._overheard(at, round) if attack in COLLUDING else ()
        false = self._false(attack, work.instruction, start, model, known)
        if false is not model:
            codec = work.config.federation.codec
            at.mailbox.send(round, write_letter(letter.origin, false, letter.terms, codec))
        return reply

    def _overheard(self, at: PeerSite, round: int) -> list[Adapter]:
        """Return the honest models of the round before: what colluders among peers know."""
        delivery = at.mailbox.received(round - 1)
        faulty = at.instruction.config.faults.sites
        letters = delivery.letters if delivery else ()
        return [_opened(at, each, round) for each in letters if each.origin not in faulty]

    def _attacked(self, attack: Attack, instruction: Instruction, reply: Reply) -> Reply:
        config = instruction.config
        start = instruction.payloads["adapter"].unpack()
        model = model_of(reply, start, config)
        known = self._spy.models(instruction, start) if attack in COLLUDING else ()
        false = self._false(attack, instruction, start, model, known)
        if false is model:
            return reply
        payloads, _ = encode_payloads(
            {"adapter": false}, {"adapter": start}, config.federation.codec, None, new_basis=False
        )
        return replace(reply, payloads={**reply.payloads, **payloads})

    def _false(
        self,
        attack: Attack,
        instruction: Instruction,
        start: Adapter,
        model: Adapter,
        known: Sequence[Adapter],
    ) -> Adapter:
        """Return what leaves in place of the trained model; the model itself if that does."""
        config = instruction.config
        replays = "replay" in config.faults.attack
        sent = self._remember(instruction, model) if replays else ()
        if attack == "none":
            return model
        log.warning(
            "site %s, round %d: FAULTY ON PURPOSE, attack %s",
            instruction.site, instruction.round, attack,
        )  # fmt: skip
        head: tuple[str, ...] = ()
        hidden: attacks.HiddenLayer | None = None
        if attack.startswith(("head", "neuron")):
            resident = load_resident(config, self.data.label_map)
            head, hidden = last_layers(trained_shapes(resident))
        situation = Situation(
            model=model,
            start=start,
            known=known,
            sent=sent,
            head=head,
            hidden=hidden,
            seed=config.seed,
            site=instruction.site,
            round=instruction.round,
        )
        try:
            return inject(attack, situation, strengths(config))
        except ValueError as error:  # the model lacks what is attacked
            raise ConfigError(f"faults.attack {attack}: {error}") from None

    def _mislabelled(self) -> LocalSite:
        """Return the site with the labels of its training records turned round."""
        if self._misled is None:
            records, classes = self.data.splits["train"], len(self.data.label_map)
            if not classes or any("label" not in record for record in records):
                raise ConfigError(
                    "faults.attack label-flip needs records with labels, and those of this task "
                    "have none; choose another attack"
                )
            labels = np.array([record["label"] for record in records])
            flipped = [
                {**record, "label": int(label)}
                for record, label in zip(records, attacks.flip_labels(labels, classes), strict=True)
            ]
            self._misled = LocalSite(
                replace(self.data, splits={**self.data.splits, "train": flipped})
            )
        return self._misled

    def _remember(self, instruction: Instruction, model: Adapter) -> Sequence[Adapter]:
        """Keep the model on the site's disk, and return those before it, the oldest first."""
        faults = instruction.config.faults
        states = site_states(
            replace(instruction, site=f"{instruction.site}, sent"),
            model.layout_digest(),
            "faults.attack replay",
        )
        if states is None:
            raise ConfigError(
                "faults.attack replay sends an old model, and a run without an identity (Flower's "
                "own loop) has no place for it; start the run with `fedapp run`"
            )
        kept = states.load(instruction.round).state
        earlier = [kept[name] for name in sorted(kept)]
        newest = [*earlier, model][-faults.delay - 1 :]
        states.save(
            instruction.round,
            {f"sent.{index:02}": each for index, each in enumerate(newest)},
            instruction.config.federation.keep_checkpoints,
        )
        return earlier


def strengths(config: RunConfig) -> Strengths:
    """Return how strong the attacks of these settings are."""
    faults = config.faults
    return Strengths(
        std=faults.std,
        share=faults.share,
        factor=faults.factor,
        z=faults.z,
        epsilon=faults.epsilon,
        delay=faults.delay,
    )


def _opened(at: PeerSite, letter: Letter, round: int) -> Adapter:
    federation = at.instruction.config.federation
    return read_letter(
        letter,
        round=round,
        like=at.received["adapter"],
        terms=at.terms,
        codec=federation.codec,
        max_bytes=int(federation.max_payload_mb * 1e6),
    )


def _marked(reply: Reply, config: RunConfig) -> Reply:
    """Say in a description that the site is faulty."""
    if reply.action is not Action.DESCRIBE or reply.failure is not None:
        return reply
    notes = [*reply.description["notes"], rehearsal(config)]
    return replace(reply, description={**reply.description, "notes": notes})
