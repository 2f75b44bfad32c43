"""Whole runs of LIGHTYEAR in one process with the tiny encoder, by both of its drivers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from peer_drivers import check_same, ledgers, models, run_autonomous, start_of
from pictures import LABELS, save_pictures

from benchmarks.local_grid import LocalGrid
from client_app.peer_process import load_trainer, run_folder
from client_app.site import LocalSite
from fedapp.config import RunConfig
from fedapp.errors import CheckpointError, ConfigError, FedappError, MissingReplies
from fedapp.exchange import Action, Failure, Instruction, Reply
from fedapp.gossip.ledger import Ledger
from fedapp.peft_format import load_peft
from fedapp.results import RunFolder
from fedapp.whole_format import load_whole
from server_app import app, peer_round, rounds

QUICK: dict[str, Any] = {
    "method": "lightyear",
    "model.source": "embedded:tiny-encoder",
    "model.max-length": 32,
    "lora.rank": 2,
    "lora.targets": "query",
    "data.max-examples": 20,
    "train.local-epochs": 1,
    "train.learning-rate": 0.02,
    "train.threads": 1,
    "train.device": "cpu",
    "federation.rounds": 3,
    "federation.local-only": False,
    "federation.max-round-retries": 0,
}
SITES = ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
Settings = Callable[..., RunConfig]


@pytest.fixture(scope="module", autouse=True)
def _no_report() -> Iterator[None]:
    """Drawing it takes most of such a run's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedapp.report.write_report", lambda folder: folder / "report.html")
        patch.setattr(app, "InMemoryGrid", LocalGrid)
        yield


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return partial(settings_in, tmp_path)


def settings_in(root: Path, name: str, **flat: Any) -> RunConfig:
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in flat.items()}
    return RunConfig.from_flat({**QUICK, **given, "name": name, "output-dir": str(root)})


@dataclass
class Whole:
    """A run that nothing happened to, and what the sites replied in it."""

    folder: RunFolder
    replies: list[Reply]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    replies: list[Reply] = []
    collect = peer_round.collect

    def watch(*args: Any) -> Any:
        collected = collect(*args)
        replies.extend(collected.replies.values())
        return collected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_round, "collect", watch)
        folder = run(settings_in(tmp_path_factory.mktemp("whole"), "whole"))
    return Whole(folder, replies)


def run(config: RunConfig, folder: RunFolder | None = None) -> RunFolder:
    folder = folder or RunFolder.create(config)
    app.run(LocalGrid(), config, folder, 1)
    return folder


def test_sites_mix_with_those_they_believe_and_the_coordinator_sees_no_model(
    whole: Whole,
) -> None:
    folder, replies = whole.folder, whole.replies

    assert [reply.action for reply in replies] == ([Action.PUBLISH] * 4 + [Action.MIX] * 4) * 3
    assert not any(reply.payloads for reply in replies), "no weights reach the coordinator"
    seeded = load_peft(folder.adapter)
    assert not any(pair.b_mr.any() for pair in seeded.pairs.values())
    assert "start for a site" in (folder.adapter / "README.md").read_text()
    summary = json.loads(folder.summary_file.read_text())
    assert sorted(summary["sites"]) == SITES
    assert all(set(phases) == {"personal"} for phases in summary["sites"].values())
    rows = folder.read_metrics()
    size = 4 * seeded.size
    for row in rows:
        if row["site"] is None:
            assert row["neighbours_heard"] == 3
            assert 0 < row["own_weight"] <= 1
        else:
            assert (row["bytes_up"], row["bytes_down"]) == (3 * size, 3 * size)
    personal = {(r["site"], r["round"]): r["loss"] for r in rows if _is(r, "personal")}
    received = {(r["site"], r["round"]): r["loss"] for r in rows if _is(r, "received")}
    for site in SITES:
        assert received[site, 2] == personal[site, 1], "a round begins where the last one ended"
    for site, entries in ledgers(folder).items():
        assert [entry.round for entry in entries] == [1, 2, 3]
        assert {heard.origin for heard in entries[0].heard} == set(SITES) - {site}
        for entry in entries:
            assert entry.own_weight + sum(h.weight for h in entry.heard) == pytest.approx(1)
            assert entry.traffic.payload_received == 3 * size
            assert all(h.scores["agreement"] is not None for h in entry.heard)
            assert all(h.accepted == (h.reason == "") for h in entry.heard)
    assert len(set(models(folder.sites).values())) == 4, "everybody has a model of its own"


def _is(row: dict[str, Any], phase: str) -> bool:
    return bool(row["phase"] == phase and row["split"] == "validation")


STRIKES = {
    "before the exchange": lambda post, loop: (post, "exchange", "before"),
    "after the exchange": lambda post, loop: (post, "exchange", "after"),
    "before the checkpoint": lambda post, loop: (loop, "_checkpoint", "before"),
}


@pytest.mark.parametrize(
    "point",
    [
        "before the exchange",
        pytest.param("after the exchange", marks=pytest.mark.slow),
        "before the checkpoint",
    ],
)
def test_resume_is_bit_identical(settings: Settings, whole: Whole, point: str) -> None:
    from fedapp.gossip.post import Post

    folder = RunFolder.create(settings("parts"))
    owner, name, when = STRIKES[point](Post, rounds.RoundLoop)  # type: ignore[no-untyped-call]
    inner = getattr(owner, name)

    def struck(self: Any, round: int, *args: Any) -> Any:
        if round != 2:
            return inner(self, round, *args)
        if when == "after":
            inner(self, round, *args)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, struck)
        with pytest.raises(KeyboardInterrupt):
            run(settings("parts"), folder)
    run(settings("parts").with_changes({"resume": str(folder.path)}), folder)

    assert models(folder.sites) == models(whole.folder.sites)
    one, other = (json.loads(f.summary_file.read_text())["sites"] for f in (whole.folder, folder))
    assert one == other
    for site, entries in ledgers(folder).items():
        for entry, uninterrupted in zip(entries, ledgers(whole.folder)[site], strict=True):
            assert [h.scores for h in entry.heard] == [h.scores for h in uninterrupted.heard]


def leaves(monkeypatch: pytest.MonkeyPatch, site: str, action: Action, round: int) -> None:
    """Let a site fail from a round on, for ever."""
    execute = LocalSite.execute

    def gone(self: LocalSite, instruction: Instruction) -> Reply:
        reply = execute(self, instruction)
        leaving = instruction.round >= round and instruction.action is action
        if instruction.site == site and leaving:
            return replace(reply, metrics={}, failure=Failure("TrainingError", "it is gone"))
        return reply

    monkeypatch.setattr(LocalSite, "execute", gone)


def test_a_site_that_leaves_for_ever_is_missing_and_the_others_go_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves(monkeypatch, "Hungary", Action.PUBLISH, 2)
    folder = run(settings("left", federation__min_replies=3))

    found = ledgers(folder)
    assert [entry.round for entry in found.pop("Hungary")] == [1]
    for entries in found.values():
        assert [entry.missing for entry in entries] == [(), ("Hungary",), ("Hungary",)]
        assert [len(entry.heard) for entry in entries] == [3, 2, 2]


def test_a_site_that_does_not_mix_goes_on_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves(monkeypatch, "Hungary", Action.MIX, 99)
    mix = LocalSite._mix

    def fails_once(self: LocalSite, work: Any) -> Reply:
        if work.instruction.site == "Hungary" and work.instruction.round == 2:
            raise MemoryError
        return mix(self, work)

    monkeypatch.setattr(LocalSite, "_mix", fails_once)
    folder = run(settings("alone", federation__min_replies=3))

    assert [entry.round for entry in ledgers(folder)["Hungary"]] == [1, 3]
    rows = folder.read_metrics()
    assert {r["missing"]["Hungary"] for r in rows if r["site"] is None and r["missing"]}


def test_a_half_whose_reply_is_lost_is_repeated_and_gives_the_same_models(
    settings: Settings, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = LocalSite.execute
    lost = {("Hungary", Action.PUBLISH, 2), ("Switzerland", Action.MIX, 2)}

    def loses(self: LocalSite, instruction: Instruction) -> Reply:
        reply = execute(self, instruction)
        key = (instruction.site, instruction.action, instruction.round)
        if key not in lost:
            return reply
        lost.remove(key)
        return replace(reply, metrics={}, failure=Failure("UnexpectedError", "it was killed"))

    monkeypatch.setattr(LocalSite, "execute", loses)
    folder = run(settings("repeated", federation__max_round_retries=1))

    assert not lost
    assert models(folder.sites) == models(whole.folder.sites)
    assert [r["retries"] for r in folder.read_metrics() if r["site"] is None] == [0, 2, 0]


def test_too_few_sites_end_the_run_and_name_who_is_missing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves(monkeypatch, "Hungary", Action.PUBLISH, 2)
    with pytest.raises(MissingReplies, match=r"round 2: 3 of 4 .* site Hungary: it is gone"):
        run(settings("ended"))


def test_whoever_refuses_everybody_trains_as_if_alone(settings: Settings) -> None:
    alone = {
        "lightyear__kernel_gate": "fixed",
        "lightyear__kernel": 1.0,
        "lightyear__distance": 1e-9,
    }
    folder = run(settings("refusing", federation__rounds=2, **alone))
    by_itself = run(settings("alone", federation__rounds=2, method="alone"))

    assert models(folder.sites) == models(by_itself.sites)
    for entries in ledgers(folder).values():
        assert all(entry.own_weight == 1 for entry in entries)
        assert all("distance" in h.reason for entry in entries for h in entry.heard)
    rows = [r for r in folder.read_metrics() if r["site"] is None]
    assert all(r["neighbours_accepted"] == 0 for r in rows)


def test_few_records_and_a_ring(settings: Settings) -> None:
    few = {"p2p__records": 2, "p2p__topology": "ring", "lightyear__kernel_gate": "calibrated"}
    folder = run(settings("few", federation__rounds=1, federation__codec="int8", **few))

    for entries in ledgers(folder).values():
        (entry,) = entries
        assert len(entry.heard) == 2
        assert {h.scores["agreement"] for h in entry.heard} == {0.0}
        assert all("kernel" in h.reason for h in entry.heard)


@pytest.mark.parametrize("agreement", ["logits", "softmax-trace", "softmax-full", "v1"])
def test_a_site_with_one_class_judges_and_is_judged_by_what_it_has(
    settings: Settings, tmp_path: Path, agreement: str
) -> None:
    rows = ["text,label,place"]
    for place in ("east", "north", "south"):
        words = [("ill", "fever and cough"), ("well", "no complaint")]
        kinds = words[:1] if place == "south" else words
        rows += [f"{place} {text} {i},{label},{place}" for i in range(20) for label, text in kinds]
    (tmp_path / "notes.csv").write_text("\n".join(rows) + "\n")
    data = {
        "data__source": str(tmp_path / "notes.csv"), "data__site_column": "place",
        "data__labels": "well,ill", "data__one_class": "allow", "data__max_examples": 0,
    }  # fmt: skip

    folder = run(settings(
        "one-class", federation__rounds=2, lightyear__kernel_gate="calibrated",
        lightyear__kernel=0.0, lightyear__agreement=agreement, **data,
    ))  # fmt: skip

    names = {"east", "north", "south"}
    assert ledgers(folder).keys() == names
    for name, entries in ledgers(folder).items():
        assert len(entries) == 2, name
        for entry in entries:
            assert {one.origin for one in entry.heard} == names - {name}
            for one in entry.heard:
                assert 0 < one.scores["agreement"] <= 1
                assert math.isfinite(one.scores["calibrated"])
    rows = [r for r in folder.read_metrics() if r["site"] == "south"]
    losses = [r["loss"] for r in rows if r["loss"] is not None]
    assert losses
    assert all(math.isfinite(loss) for loss in losses)


def test_what_cannot_be_compared_is_refused_before_anybody_trains(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Action] = []
    execute = LocalSite.execute

    def watched(self: LocalSite, instruction: Instruction) -> Reply:
        asked.append(instruction.action)
        return execute(self, instruction)

    monkeypatch.setattr(LocalSite, "execute", watched)
    monkeypatch.setattr("fedapp.peer_rules.agreement.LARGEST_FULL_KERNEL", 5)
    config = settings("large", lightyear__agreement="softmax-full")
    words = r"at most 5, got \d+; lower p2p\.records or p2p\.rows"

    with pytest.raises(ConfigError, match=words):
        run(config)
    with pytest.raises(FedappError, match=words):
        run_autonomous(tmp_path, config, SITES, monkeypatch)

    assert set(asked) == {Action.DESCRIBE}


def test_between_hospitals_the_coordinator_refuses(settings: Settings) -> None:
    class Elsewhere(LocalGrid):
        """A grid that is no simulation."""

    config = settings("far")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "InMemoryGrid", Elsewhere)
        with pytest.raises(ConfigError, match="start `fedapp peer` at each"):
            run(config)


def test_both_drivers_give_the_same_models(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_autonomous(tmp_path, settings_in(tmp_path, "alone"), SITES, monkeypatch)

    check_same(whole.folder, tmp_path, SITES)
    exported = load_peft(RunFolder(tmp_path / "Hungary" / "run").adapter)
    assert exported.is_finite()


CORNERS = ["east", "north", "south"]


def of_images(tmp_path: Path, **flat: Any) -> RunConfig:
    data = save_pictures(tmp_path / "pictures.npz", CORNERS)
    images = {
        "model.task": "image-classification", "model.source": "embedded:tiny-cnn",
        "model.trainable": "all", "data.source": str(data), "data.partition": "natural",
        "data.labels": ",".join(LABELS), "train.batch-size": 8, "federation.rounds": 2,
    }  # fmt: skip
    place = {"output-dir": str(tmp_path), "name": "coordinated"}
    return RunConfig.from_flat({**QUICK, **images, **place, **flat})


def test_both_drivers_give_the_same_models_of_which_all_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = of_images(tmp_path)
    coordinated = run(config)

    run_autonomous(tmp_path, config, CORNERS, monkeypatch)

    check_same(coordinated, tmp_path, CORNERS)
    entries = [entry for of_node in ledgers(coordinated).values() for entry in of_node]
    assert all(one.scores["calibrated"] is not None for e in entries for one in e.heard)
    assert any(one.accepted for entry in entries for one in entry.heard)
    exported = load_whole(RunFolder(tmp_path / "east" / "run").adapter)
    (kept,) = models(tmp_path / "east" / "sites").values()
    assert all(tensor.tobytes() in kept for tensor in exported.tensors.values())


def test_under_both_drivers_a_huge_model_is_refused_alone_and_the_others_are_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = of_images(
        tmp_path,
        **{
            "model.source": "embedded:conv4", "lightyear.kernel-gate": "off",
            "lightyear.prediction": -1.0, "lightyear.distance": 0.0,
            "faults.sites": "east", "faults.attack": "scaling", "faults.factor": 3e5,
        },
    )  # fmt: skip
    coordinated = run(config)
    monkeypatch.setattr("client_app.hosting.check_allowed", lambda *_: None)

    run_autonomous(tmp_path, config, CORNERS, monkeypatch)

    check_same(coordinated, tmp_path, CORNERS)
    for name, other in (("north", "south"), ("south", "north")):
        for entry in ledgers(coordinated)[name]:
            heard = {one.origin: one for one in entry.heard}
            assert (heard["east"].reason, heard["east"].weight) == ("unmixable", 0)
            assert heard[other].accepted
            assert heard[other].weight == pytest.approx(0.95 ** (entry.round - 1) / 2)


def test_a_peer_refuses_a_method_that_needs_a_coordinator(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('method = "fedavg"\n')
    start = start_of("Cleveland", "0" * 32, tmp_path, SITES)
    with (
        pytest.raises(ConfigError, match=r"method fedavg needs a coordinator; choose one of .*lig"),
        load_trainer(start, tmp_path / "settings.toml", print),
    ):
        pass


def test_a_second_run_trains_all_its_rounds_and_loses_nothing_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings_in(tmp_path, "alone")

    def state_of() -> tuple[str, dict[str, str], set[int]]:
        mine = RunFolder(tmp_path / "Hungary" / "run")
        rounds = {row["round"] for row in mine.read_metrics()}
        return mine.read_config()["run"], digests(mine.path), rounds

    run_autonomous(tmp_path, config, SITES, monkeypatch)
    first, files, _ = state_of()
    run_autonomous(tmp_path, config, SITES, monkeypatch)
    second, newer, rounds = state_of()

    assert first != second
    assert rounds == set(range(1, config.federation.rounds + 1))
    assert digests(tmp_path / "Hungary" / f"run-{first}") == files
    adapter = "adapter/adapter_model.safetensors"
    assert newer[adapter] == files[adapter], "the same settings, trained from the beginning again"


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_folder_of_results_is_that_of_its_run_and_comes_back_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.run_lock._PATIENCE", 0.05)

    def starts(run: str, *, config: bool = True) -> list[str]:
        start = start_of("Bern", run, tmp_path, ["Bern"])
        with run_folder(start) as folder:
            kept = [path.read_text() for path in folder.path.glob("mine")]
            (folder.path / "mine").write_text(run)
            if config:
                folder.write_config(RunConfig.from_flat({}), {}, run=run)
            else:
                folder.ledger.mkdir(exist_ok=True)
                with closing(Ledger(folder.ledger / "ledger.jsonl", run, "Bern")) as ledger:
                    ledger.record(ledger.length + 1, heard=(), time=1.0)
            with pytest.raises(CheckpointError, match="in progress"), run_folder(start):
                pass
            other = start_of("Bern", "f" * 32, tmp_path, ["Bern"])
            with pytest.raises(CheckpointError, match="in progress"), run_folder(other):
                pass
            return kept

    one, two, three = ("1" * 32, "2" * 32, "3" * 32)
    assert starts(one, config=False) == []
    assert starts(two) == [], "whose folder it is says the ledger, where nothing else does"
    assert starts(one, config=False) == [one]
    (tmp_path / "Bern" / "run").rename(tmp_path / "Bern" / f"run-{one}")  # a kill between two moves
    assert starts(one) == [one]
    (tmp_path / "Bern" / f"run-{one}").mkdir()  # somebody's own
    assert starts(three) == []
    names = {path.name for path in (tmp_path / "Bern").iterdir()}
    assert names == {"run", f"run-{one}", f"run-{one}-2", f"run-{two}"}
