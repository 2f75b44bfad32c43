"""A service that is a training peer as well: the same desk, records, model, policy and log."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hosted_peers import SETTINGS, ledger_of, run_of, write_hosted, write_settings
from peers import PeerProcesses

from client_app.data import load_site
from client_app.models import base_loads
from client_app.preflight.check import check_site
from client_app.service import peer as peer_module
from client_app.service.desk import Desk
from client_app.service.kept import KeptResult
from client_app.service.peer import HostedPeer, end_peer
from client_app.service.serve import open_state
from client_app.service.work import SiteWork
from client_app.site import LocalSite
from fedapp.audit import AuditLog
from fedapp.config import RunConfig
from fedapp.config_site import load_site_file
from fedapp.errors import FedappError, GossipError
from fedapp.exchange import Action, Instruction
from fedapp.hash_chain import read_chain
from fedapp.headers import read_reply
from fedapp.mailbox import Mailbox
from fedapp.opening_hours import DAYS
from fedapp.peer_update import read_letter

NAMES = ("Cleveland", "Hungary")
ROUNDS = SETTINGS["federation.rounds"]
COORDINATED = RunConfig.from_flat(
    {
        **{key: value for key, value in SETTINGS.items() if not key.startswith("p2p.")},
        "method": "fedavg",
    }
)


class Hospital:
    """One site's files, log and work, at a desk that may be another's as well."""

    def __init__(self, sites: PeerProcesses, name: str, policy: str = "") -> None:
        self.file = write_hosted(sites, name, policy)
        self.config = load_site_file(self.file)
        self.sites, self.name, self.said = sites, name, []

    def open(self) -> None:
        open_state(self.config)
        self.audit = AuditLog(self.config.audit)
        kept = KeptResult(self.config.state, self.config.policy)
        self.work = SiteWork(self.config, self.audit, kept)
        self.peer = HostedPeer.read(self.config, self.config.peer)

    def meet(self, desk: Desk) -> asyncio.Task[None]:
        return asyncio.create_task(self.peer.keep(desk, self.work, self.audit, self.said.append))

    def events(self, kind: str) -> list[dict]:
        found = [link.body for link in read_chain(self.config.audit)]
        return [event for event in found if event["event"] == kind]


@pytest.fixture
def sites(tmp_path):
    with PeerProcesses(tmp_path, NAMES) as made:
        write_settings(made)
        yield made


def test_two_services_learn_from_each_other_while_a_coordinator_asks(sites):
    first, second = (Hospital(sites, name) for name in NAMES)

    async def whole():
        for one in (first, second):
            one.open()
        loaded = base_loads()
        desk = Desk(first.work)  # one for both: one process has one thread that works
        meeting = [one.meet(desk) for one in (first, second)]
        while not first.events("published"):
            await asyncio.sleep(0.05)
        asked = Instruction(Action.INITIAL, first.name, COORDINATED, run="0d" * 16)
        task = desk.admit("a" * 64, asked)
        desk.launch(task, asked)
        answer = await task.done
        among_peers = not any(one.done() for one in meeting)
        await asyncio.wait_for(asyncio.gather(*meeting), 120)
        assert await desk.close(10.0)
        return answer, among_peers, base_loads() - loaded

    answer, among_peers, loads = asyncio.run(whole())

    reply = read_reply(answer.header, list(answer.payloads), answer.payloads.__getitem__)
    assert (reply.failure, among_peers) == (None, True)
    assert loads <= 1, "peer and coordinator have one base model"
    assert {(one.peer.doing, one.peer.failed) for one in (first, second)} == {("completed", False)}
    for one, other in ((first, second), (second, first)):
        assert run_of(one.file).read_status()["state"] == "completed"
        assert [e["action"] for e in one.events("asked") if e["run"] == sites.run] == [
            "describe", *["publish", "mix"] * ROUNDS,
        ]  # fmt: skip
        sent = {event["round"]: event["payload"] for event in one.events("published")}
        heard = {entry.round: entry.heard[0] for entry in ledger_of(other.file, other.name)}
        assert {round: (sent[round]["digest"], sent[round]["bytes"]) for round in sent} == {
            round: (heard[round].digest, heard[round].size) for round in heard
        }
        assert set(heard) == set(range(1, ROUNDS + 1))
        assert [event["how"] for event in one.events("peer-ended")] == ["completed"]


def refusal(hospital):
    with pytest.raises(FedappError) as caught:
        HostedPeer.read(hospital.config, hospital.config.peer)
    assert caught.value.exit_code == 2
    return caught.value.message


WRONG = {
    "another's file": (
        lambda h: h.file.with_name("site.toml").write_text(
            (h.file.parents[1] / "site-1" / "site.toml").read_text()
        ),
        "is the file of 'Hungary', expected this site's, 'Cleveland'",
    ),
    "a relay": (
        lambda h: h.file.with_name("site.toml").write_text(
            h.file.with_name("site.toml").read_text().replace("settings =", "# settings =")
        ),
        "names no settings",
    ),
    "no certificate": (lambda h: h.file.with_name("certificate.pem").unlink(), "certificate.pem"),
    "a coordinator's method": (
        lambda h: write_settings(h.sites, method="fedavg"),
        "needs a coordinator",
    ),
    "a rehearsal": (
        lambda h: write_settings(h.sites, **{"faults.sites": "Hungary"}),
        "takes part in none",
    ),
    "a folder as base model": (
        lambda h: write_settings(h.sites, **{"model.source": str(h.sites.root)}),
        "which of this machine's folders is a base model is the site's affair",
    ),
    "a member that does not train": (
        lambda h: h.sites.root.joinpath("consortium.toml").write_text(
            h.sites.root.joinpath("consortium.toml").read_text().replace("true", "false")
        ),
        "says of 'Cleveland' trains = false",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_a_sentence_before_anything_starts(sites, case):
    Hospital(sites, "Hungary")
    hospital = Hospital(sites, "Cleveland")
    spoil, words = WRONG[case]
    spoil(hospital)

    assert words in refusal(hospital)


def test_what_the_policy_forbids_is_a_sentence_and_hours_only_wait(sites):
    closed = f"{DAYS[(np.datetime64('today').astype(object).weekday() + 3) % 7]} 00:00-24:00"
    forbidden = Hospital(sites, "Cleveland", "max-rank = 1\n")
    later = Hospital(sites, "Cleveland", f'hours = "{closed}"\ncoordinators = "university"\n')

    assert "rule 'max-rank'" in refusal(forbidden)
    assert HostedPeer.read(later.config, later.config.peer).run.method == "lightyear"


def test_hours_hold_a_round_back_and_too_many_steps_end_it(sites, monkeypatch):
    monkeypatch.setattr(peer_module, "_LOOK", 0.05)
    opened = asyncio.Event()
    write_settings(sites, **{"train.local-epochs": 2})  # a step each
    hospital = Hospital(sites, "Cleveland", "max-local-steps = 1\n")
    hospital.open()
    waited = []

    async def closed_at_first(self):
        waited.append(len(hospital.events("asked")))
        await opened.wait()

    monkeypatch.setattr(HostedPeer, "_may_begin", closed_at_first)

    async def whole():
        desk = Desk(hospital.work)
        meeting = hospital.meet(desk)
        while not waited:
            await asyncio.sleep(0.05)
        opened.set()
        await asyncio.wait_for(meeting, 60)
        await desk.close(10.0)

    asyncio.run(whole())

    assert waited == [1], "it has described itself, and not begun to train"
    assert "rule 'max-local-steps'" in hospital.said[-1]
    assert hospital.events("published") == []
    (ended,) = hospital.events("peer-ended")
    assert (ended["how"], "max-local-steps" in ended["message"]) == ("failed", True)
    assert hospital.peer.failed
    assert hospital.peer.doing.startswith("failed, ")
    assert "max-local-steps" in hospital.peer.doing
    assert run_of(hospital.file).read_status()["state"] == "failed"


def test_a_hospital_says_which_folder_is_a_base_model(sites):
    hospital = Hospital(sites, "Cleveland")
    write_settings(sites, **{"model.source": "/theirs"})
    hospital.file.write_text(hospital.file.read_text() + f'[models]\n"/theirs" = "{sites.root}"\n')
    config = load_site_file(hospital.file)

    assert HostedPeer.read(config, config.peer).run.model.source == str(sites.root)


WRONG_ONLY_HERE = {
    "data": ("DataError", {"data.labels": "yes,no"}),
    "settings": ("ConfigError", {"data.max-examples": 20, "lora.targets": "nothing-like-it"}),
}


@pytest.mark.parametrize("case", WRONG_ONLY_HERE)
def test_what_is_wrong_with_the_settings_is_not_tried_again_and_is_in_the_log(sites, case):
    kind, changes = WRONG_ONLY_HERE[case]
    write_settings(sites, **changes)
    hospital = Hospital(sites, "Cleveland")
    hospital.open()
    found = {each.check: each for each in check_site(hospital.config, COORDINATED)}
    asked = Instruction(Action.DESCRIBE, "Cleveland", hospital.peer.run, run=sites.run)
    failure = hospital.work.for_peer(asked, lambda _: "").failure

    async def whole():
        desk = Desk(hospital.work)
        await asyncio.wait_for(hospital.meet(desk), 60)
        await desk.close(10.0)

    asyncio.run(whole())

    assert failure.kind == kind
    (ended,) = hospital.events("peer-ended")
    assert (ended["how"], ended["message"]) == ("failed", failure.message)
    assert (hospital.peer.doing, hospital.peer.failed) == (f"failed, {failure.message}", True)
    if case == "data":
        assert found["data"].status == "ok", "the coordinator's run can use the same records"
        assert found["peer-data"].status == "failed"


def test_what_may_pass_is_told_until_a_round_has_succeeded(sites, monkeypatch):
    monkeypatch.setattr(peer_module, "_AGAIN", 0.01)
    hospital, seen = Hospital(sites, "Cleveland"), []
    hospital.open()
    sleep = asyncio.sleep

    def look(self):
        seen.append((self.doing, self.failed))

    async def once(self, *_):
        look(self)
        if len(seen) == 1:
            raise GossipError("the port is taken")
        self._succeeds()
        look(self)

    async def pause(seconds):
        look(hospital.peer)
        await sleep(seconds)

    monkeypatch.setattr(HostedPeer, "_once", once)
    monkeypatch.setattr(peer_module.asyncio, "sleep", pause)
    asyncio.run(hospital.peer.keep(None, hospital.work, hospital.audit, hospital.said.append))

    failed = ("failed, the port is taken", True)
    assert seen == [("running", False), failed, failed, ("running", False)]
    assert (hospital.peer.doing, hospital.peer.failed) == ("completed", False)


def test_a_peer_is_called_off_in_its_training(sites):
    write_settings(sites, **{"train.local-epochs": 100000})
    hospital = Hospital(sites, "Cleveland")
    hospital.open()

    async def whole():
        desk = Desk(hospital.work)
        meeting = hospital.meet(desk)
        while len(hospital.events("asked")) < 2:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        await end_peer(meeting, hospital.work)
        return meeting.cancelled(), await desk.close(10.0)

    assert asyncio.run(whole()) == (True, True)
    assert hospital.events("published") == []
    assert run_of(hospital.file).read_status()["state"] == "stopped"


def test_what_a_peer_publishes_is_clipped_and_what_it_keeps_is_not(tmp_path: Path):
    config = RunConfig.from_flat(SETTINGS)
    data = load_site(config, "Cleveland")
    models = {}
    for norm in (0.0, 0.01):
        site, states = LocalSite(data, clip_norm=norm), tmp_path / str(norm)
        asked = Instruction(Action.INITIAL, "Cleveland", config, run="0e" * 16)
        initial = site.execute(asked).payloads
        published = site.execute(
            replace(
                asked, action=Action.PUBLISH, round=1, payloads=initial, state_folder=str(states)
            )
        )
        assert published.failure is None
        letter = Mailbox.of(states, "Cleveland", "0e" * 16).outgoing(1)
        start = initial["adapter"].unpack()
        models[norm] = read_letter(
            letter, round=1, like=start, terms=letter.terms, codec="fp32", max_bytes=10**8
        )
        factor = published.numbers.get("clip_factor", 1.0)

    def moved(model):
        begin = dict(start.arrays())
        return {name: array - begin[name] for name, array in model.arrays()}

    whole, clipped = moved(models[0.0]), moved(models[0.01])
    norm = np.sqrt(sum(np.square(a, dtype=np.float64).sum() for a in clipped.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)
    assert 0 < factor < 1
    for name, array in clipped.items():
        assert np.allclose(array, factor * whole[name], rtol=1e-3, atol=1e-6)


def test_site_check_looks_at_the_peer_too(sites):
    hospital = Hospital(sites, "Cleveland")
    run = RunConfig.from_flat({**SETTINGS, "method": "fedavg"})

    def look():
        found = list(check_site(hospital.config, run))
        dates = [each.detail for each in found if each.check == "certificates"]
        return {each.check: each for each in found}, dates

    with socket.create_server(("127.0.0.1", sites.ports["Hungary"])):
        found, dates = look()
    alone, _ = look()
    hospital.file.with_name("key.pem").unlink()
    broken, _ = look()

    assert (found["peer"].status, found["neighbours"].status) == ("ok", "ok")
    assert "certificate.pem: valid from" in dates[0]
    assert [found[f"peer-{what}"].status for what in ("data", "policy", "base-model")] == ["ok"] * 3
    assert alone["neighbours"].status == "warning"
    assert "not Hungary at 127.0.0.1" in alone["neighbours"].detail
    assert broken["peer"].status == "failed"
    assert "key.pem" in broken["peer"].detail
    assert "neighbours" not in broken


def test_site_check_tells_that_a_round_of_the_peer_has_too_many_steps(sites):
    write_settings(sites, **{"train.local-epochs": 2})  # a step each
    hospital = Hospital(sites, "Cleveland", "max-local-steps = 1\n")

    found = {each.check: each for each in check_site(hospital.config, COORDINATED)}

    assert (found["policy"].status, found["peer-policy"].status) == ("ok", "failed")
    assert "rule 'max-local-steps'" in found["peer-policy"].detail


def test_a_peer_whose_rounds_succeed_again_is_well(sites, monkeypatch):
    monkeypatch.setattr(peer_module, "_AGAIN", 0.05)
    write_settings(sites, **{"p2p.minimum": 0, "federation.rounds": 1, "p2p.gather-timeout": 0.5})
    hospital, seen = Hospital(sites, "Cleveland"), []
    hospital.open()
    record = hospital.audit.record

    def looked(event, **more):
        seen.append((more.get("action"), hospital.peer.failed))
        record(event, **more)

    monkeypatch.setattr(hospital.audit, "record", looked)
    taken = socket.create_server(("127.0.0.1", sites.ports["Cleveland"]))

    async def whole():
        desk = Desk(hospital.work)
        meeting = hospital.meet(desk)
        while not hospital.peer.failed:
            await asyncio.sleep(0.01)
        taken.close()
        await asyncio.wait_for(meeting, 60)
        await desk.close(10.0)

    asyncio.run(whole())

    assert ("mix", True) in seen, "begun again is not yet well"
    assert (hospital.peer.doing, hospital.peer.failed) == ("completed", False)
