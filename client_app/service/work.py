"""What the site does with a task: policy, own records, the work itself, and what may leave."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_app.failures import to_failure
from client_app.service.answer import Answer
from client_app.service.desk import Task
from client_app.service.kept import KEPT, KeptResult
from fedapp.audit import AuditLog
from fedapp.config import RunConfig
from fedapp.config_site import SiteFile
from fedapp.errors import ConfigError, LedgerError, PolicyRefused, TaskCancelled
from fedapp.exchange import Action, Instruction, Reply
from fedapp.mailbox import Mailbox
from fedapp.policy import check_steps, withhold

if TYPE_CHECKING:
    from client_app.site import LocalSite

log = logging.getLogger(__name__)


class SiteWork:
    """Works on one task after the other, always in the same thread.

    Parameters
    ----------
    config : SiteFile
    audit : AuditLog
    kept : KeptResult
    """

    def __init__(self, config: SiteFile, audit: AuditLog, kept: KeptResult) -> None:
        self._config, self._audit, self._kept = config, audit, kept
        self._site: tuple[object, LocalSite] | None = None
        self._task: Task | None = None
        self._ending = threading.Event()

    def warm(self) -> None:
        """Load what every task needs, so that the first one does not wait for it."""
        import client_app.site  # noqa: F401

    def __call__(self, task: Task) -> Answer:
        """Do the task, and write down what was asked and what leaves."""
        instruction = task.instruction
        self._task = task
        try:
            self._kept.acknowledge(instruction)
            self._audit.record("asked", **described(task.id, instruction))
            reply, withheld = self._reply(task)
            self._note(task, reply, withheld)  # before it is kept: what is kept may leave at once
            answer = Answer.of(reply)
            if instruction.action in KEPT and reply.failure is None:
                self._keep(task, instruction, answer)
        except LedgerError as error:  # nothing leaves that is not written down
            answer = Answer.of(self._failed(instruction, error))
        finally:
            self._task = None
        return answer

    def for_peer(self, instruction: Instruction, digest: Callable[[bytes], str]) -> Reply:
        """Do what this site's own peer asks, see `client_app.site.Site`; settings are its own.

        The same records, model, policy and log as for a coordinator. Nothing leaves but the
        mailbox's letter, which is written down before a node sees it, with its ``digest``.
        """
        asked, about = instruction, described("", instruction)
        try:
            self._audit.record("asked", **about)
            site = self._of(asked.config)
            check_steps(self._config.policy, _steps(site, asked))
            reply = site.execute(asked)
            if reply.failure is None and asked.action is Action.PUBLISH:
                self._audit.record("published", **about, **_letter(asked, digest))
        except Exception as error:
            reply = self._failed(asked, error)
        if reply.failure is not None:
            log.warning("%s", reply.failure.message)
        return reply

    def end(self) -> None:
        """Call off what the peer asked for, at its next step."""
        self._ending.set()

    def _note(self, task: Task, reply: Reply, withheld: list[str]) -> None:
        failure = reply.failure
        if failure is not None and failure.kind == PolicyRefused.__name__:
            told = {"rule": failure.reason, "message": failure.message}
            self._audit.record("refused", **told, **described(task.id, task.instruction))
        else:
            self._audit.record("answered", **_leaving(task.id, reply, withheld))

    def _reply(self, task: Task) -> tuple[Reply, list[str]]:
        asked = task.instruction
        try:
            task.check()
            check_model(self._config, asked.config.model.source)
            own = self._config.localise(asked.config)
            site = self._of(own)
            check_steps(self._config.policy, _steps(site, asked))
        except Exception as error:
            return self._failed(asked, error), []
        reply = site.execute(
            replace(
                asked, config=own, progress_file="", state_folder=str(self._config.state / "rounds")
            )
        )
        reply = replace(reply, description=_in_public(reply.description, own, asked.config))
        records = _training_records(site)
        return withhold(self._config.policy, reply, asked.config.model.task, records)

    def _failed(self, asked: Instruction, error: Exception) -> Reply:
        name = self._config.name
        failure = to_failure(error, name, asked.round)
        return Reply(name, asked.round, asked.action, failure=failure)

    def _of(self, own: RunConfig) -> LocalSite:
        """Return the site with the records that these settings mean, read anew if they changed."""
        from client_app.data import load_site
        from client_app.site import LocalSite

        key = (
            (own.data, own.model.task, own.seed, own.federation.held_out),
            _stamp(own.data.source),
        )
        if self._site is None or self._site[0] != key:
            data = load_site(own, self._config.name, find_labels=False)
            clip_norm = self._config.policy.clip_norm
            # The state outlives this account's cache, which in a container is gone with it.
            site = LocalSite(data, clip_norm=clip_norm, watch=self._watch, keys=self._config.state)
            self._site = (key, site)
        return self._site[1]

    def _watch(self, step: int, steps: int, loss: float) -> None:
        if self._task is not None:
            self._task.report(step, steps, loss)
        elif self._ending.is_set():
            raise TaskCancelled("the service ends")

    def _keep(self, task: Task, instruction: Instruction, answer: Answer) -> None:
        try:
            self._kept.save(task.id, instruction, answer)
        except OSError as error:
            log.warning(
                "the result of round %d is sent but not kept (%s): if it is lost on the way the "
                "site trains again; make room in %s",
                instruction.round, error.strerror, self._config.state,
            )  # fmt: skip


def check_model(config: SiteFile, source: str) -> None:
    """Let a run's settings name models, and no folder of this machine; raises ConfigError."""
    from client_app.sources import is_path, short_name

    if source not in config.models and is_path(source):
        raise ConfigError(
            f"model.source names a folder, '{short_name(source)}', and which of this machine's "
            "folders is a base model is the site's affair; use a name, and let every site say "
            "under [models] of site.toml where it is"
        )


def described(task_id: str, asked: Instruction) -> dict[str, Any]:
    """Return what the audit log says of a request."""
    return {
        "task": task_id[:16],
        "action": asked.action.value,
        "run": asked.run,
        "round": asked.round,
        "method": asked.config.method,
        "base_model": asked.config.model.source,
        "bytes": sum(packed.layout.nbytes for packed in asked.payloads.values()),
    }


def _leaving(task_id: str, reply: Reply, withheld: list[str]) -> dict[str, Any]:
    failure = reply.failure
    return {
        "task": task_id[:16],
        "action": reply.action.value,
        "round": reply.round,
        "failure": failure and {"kind": failure.kind, "message": failure.message},
        "payloads": {
            name: {
                "bytes": packed.nbytes,
                "codec": packed.layout.codec,
                "sha256": hashlib.sha256(packed.array.data).hexdigest(),
            }
            for name, packed in reply.payloads.items()
        },
        "metrics": {table: sorted(values) for table, values in reply.metrics.items()},
        "numbers": sorted(reply.numbers),
        "description": sorted(reply.description),
        "weight": reply.weight,
        "withheld": withheld,
    }


def _letter(asked: Instruction, digest: Callable[[bytes], str]) -> dict[str, Any]:
    """Return what is known of the letter that the peer's node may send from now on."""
    letter = Mailbox.of(Path(asked.state_folder), asked.site, asked.run).outgoing(asked.round)
    payload = letter.payload if letter else b""
    return {"payload": {"bytes": len(payload), "digest": digest(payload)}}


def _training_records(site: LocalSite) -> int:
    return len(site.data.splits.get("train", ()))


def _steps(site: LocalSite, asked: Instruction) -> int:
    """Return the steps that a round of the training asked for would take."""
    from client_app.local_round import round_steps
    from client_app.optimizers import planned_steps

    config, records = asked.config, _training_records(site)
    if asked.action in (Action.TRAIN, Action.PUBLISH):
        return round_steps(config, records)
    if asked.action is Action.LOCAL_ONLY:
        return planned_steps(config.train, records, config.train.local_epochs)
    return 0


def _in_public(description: dict[str, Any], own: RunConfig, asked: RunConfig) -> dict[str, Any]:
    """Call a base model of this machine by the name that the run gives it, not by its path."""
    if not description or own.model.source == asked.model.source:
        return description
    peft = dict(description["peft_config"])
    if "base_model_name_or_path" in peft:
        peft["base_model_name_or_path"] = asked.model.source
    return {**description, "base_model": asked.model.source, "peft_config": peft}


def _stamp(source: str) -> tuple[object, ...]:
    """Return what changes when somebody writes the records anew; nothing for embedded ones."""
    path = Path(source)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    found = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((str(file), status.st_mtime_ns, status.st_size))
    return tuple(found)
