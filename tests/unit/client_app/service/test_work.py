"""The real work behind the socket: the same bits as in process, trained once, audited, fenced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from site_desk import CONFIG, NAME, Service, write_site

from client_app import site as site_module
from client_app.data import load_site
from client_app.models import base_loads
from client_app.service import kept as kept_module
from client_app.service.remote import RemoteSite
from client_app.site import LocalSite
from fedapp.errors import LedgerError
from fedapp.exchange import Action, Instruction, SiteDescription

RUN = "0b" * 16
TIMES = {"seconds", "training_seconds", "evaluation_seconds"}


def ask(action, payloads=None, config=CONFIG, round=1, **fields):
    return Instruction(action, NAME, config, round, payloads=payloads or {}, run=RUN, **fields)


def local(tmp_path, clip_norm=0.0):
    own = CONFIG.with_changes({"data.source": str(tmp_path / "records.csv")})
    return LocalSite(load_site(own, NAME), clip_norm=clip_norm, keys=tmp_path / "state"), own


@pytest.fixture
def trainings(monkeypatch):
    """The rounds in which a training really began."""
    rounds, original = [], site_module.train_round

    def counted(*args, **kwargs):
        rounds.append(kwargs["round"])
        return original(*args, **kwargs)

    monkeypatch.setattr(site_module, "train_round", counted)
    return rounds


def numbers(reply):
    return {name: value for name, value in reply.numbers.items() if name not in TIMES}


def test_both_paths_give_the_same_bits(tmp_path):
    path = write_site(tmp_path, "min-records = 0\n")
    here, own = local(tmp_path)
    with Service(path, work=None) as service:
        there = RemoteSite(service.address)
        described = there.describe(CONFIG, NAME).description
        initial = there.execute(ask(Action.INITIAL)).payloads
        far = [
            there.execute(ask(action, initial))
            for action in (Action.TRAIN, Action.EVALUATE, Action.LOCAL_ONLY)
        ]
    near = [
        here.execute(ask(action, initial, own))
        for action in (Action.TRAIN, Action.EVALUATE, Action.LOCAL_ONLY)
    ]

    expected = here.execute(ask(Action.DESCRIBE, config=own)).description
    assert {**described, "clock": 0} == {**expected, "clock": 0}
    SiteDescription(**described)
    for one, other in zip(far, near, strict=True):
        assert one.failure is None
        assert (one.metrics, one.weight, numbers(one)) == (
            other.metrics, other.weight, numbers(other),
        )  # fmt: skip
        assert list(one.payloads) == list(other.payloads)
        for name, packed in one.payloads.items():
            assert packed.layout == other.payloads[name].layout
            assert np.array_equal(packed.array, other.payloads[name].array)


def test_the_same_message_twice_is_trained_once_also_after_a_restart(tmp_path, trainings):
    path = write_site(tmp_path)
    with Service(path, work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        first = there.execute(ask(Action.TRAIN, initial))
        second = there.execute(ask(Action.TRAIN, initial))
    with Service(path, work=None) as service:
        third = RemoteSite(service.address).execute(ask(Action.TRAIN, initial))
        events = [event["event"] for event in service.events()]

    assert trainings == [1]
    assert first.failure is None
    for again in (second, third):
        assert again.numbers == first.numbers
        assert np.array_equal(again.payloads["adapter"].array, first.payloads["adapter"].array)
    assert events == ["asked", "answered"] * 2 + ["repeated"] * 2


def test_records_keep_their_digest_when_the_service_starts_elsewhere(tmp_path, monkeypatch):
    """A container's home is gone when it starts again, and a run is resumed all the same."""
    path, digests = write_site(tmp_path), []
    for home in ("one", "two"):
        (tmp_path / home).mkdir()
        monkeypatch.setenv("HOME", str(tmp_path / home))
        with Service(path, work=None) as service:
            described = RemoteSite(service.address).describe(CONFIG, NAME).description
        digests.append(described["data_digest"])

    assert digests[0] == digests[1] != ""


def test_a_result_made_under_another_policy_does_not_leave(tmp_path, trainings):
    with Service(write_site(tmp_path, "min-records = 0\n"), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        open_ = there.execute(ask(Action.TRAIN, initial))
    with Service(write_site(tmp_path, "min-records = 10\n"), work=None) as service:
        closed = RemoteSite(service.address).execute(ask(Action.TRAIN, initial))

    assert open_.metrics
    assert closed.metrics == {}
    assert trainings == [1, 1]
    assert np.array_equal(open_.payloads["adapter"].array, closed.payloads["adapter"].array)


def test_the_base_model_is_loaded_once(tmp_path):
    with Service(write_site(tmp_path), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        loaded = base_loads()
        for round in (1, 2):
            there.describe(CONFIG, NAME)
            there.execute(ask(Action.TRAIN, initial, round=round))

    assert base_loads() == loaded


def test_another_round_acknowledges_a_result(tmp_path, trainings):
    with Service(write_site(tmp_path), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        there.execute(ask(Action.TRAIN, initial))
        assert service.kept.path.exists()
        there.execute(ask(Action.EVALUATE, initial, round=2))
        assert not service.kept.path.exists()
        there.execute(ask(Action.TRAIN, initial))

    assert trainings == [1, 1]


def test_a_damaged_result_is_trained_again(tmp_path, trainings):
    with Service(write_site(tmp_path), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        first = there.execute(ask(Action.TRAIN, initial))
        data = bytearray(service.kept.path.read_bytes())
        data[-3] ^= 1
        service.kept.path.write_bytes(bytes(data))
        again = there.execute(ask(Action.TRAIN, initial))

    assert trainings == [1, 1]
    assert np.array_equal(again.payloads["adapter"].array, first.payloads["adapter"].array)


def test_a_result_that_cannot_be_kept_is_sent_all_the_same(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_module, "write_bytes", full)
    with Service(write_site(tmp_path), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        assert there.execute(ask(Action.TRAIN, initial)).failure is None


def test_nothing_leaves_that_cannot_be_written_down(tmp_path, monkeypatch):
    with Service(write_site(tmp_path), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads

        def full(event, **_what):
            if event == "answered":
                raise LedgerError("the audit log cannot be written (no space), make room")

        with monkeypatch.context() as patch:
            patch.setattr(service.audit, "record", full)
            reply = there.execute(ask(Action.TRAIN, initial))
        again = there.execute(ask(Action.TRAIN, initial))
        events = service.events()

    assert reply.failure.kind == "LedgerError"
    assert not reply.payloads
    assert not reply.metrics
    # Nor is it kept, to leave unseen when the message comes again.
    (answered,) = (each for each in events if each["event"] == "answered" and each["round"] == 1
                   and each["action"] == "train")  # fmt: skip
    assert answered["payloads"]["adapter"]["sha256"] == again.payloads["adapter"].layout.digest


def test_the_log_says_what_left(tmp_path):
    with Service(write_site(tmp_path), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        reply = there.execute(ask(Action.TRAIN, initial))
        asked, answered = service.events()[-2:]

    assert (asked["event"], asked["action"], asked["round"], asked["run"]) == (
        "asked", "train", 1, RUN,
    )  # fmt: skip
    packed = reply.payloads["adapter"]
    assert answered["payloads"]["adapter"] == {
        "bytes": packed.nbytes, "codec": "fp32", "sha256": packed.layout.digest,
    }  # fmt: skip
    assert answered["withheld"], "six validation records are fewer than ten"


def test_metrics_of_few_records_do_not_leave(tmp_path):
    with Service(write_site(tmp_path, records=30), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        reply = there.execute(ask(Action.TRAIN, initial))

    assert reply.failure is None
    assert reply.metrics == {}
    assert reply.weight == 18
    assert "train_loss" in reply.numbers, "eighteen training records are enough"


def test_an_update_is_clipped_to_the_norm(tmp_path):
    with Service(write_site(tmp_path, "clip-norm = 0.01\n"), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        reply = there.execute(ask(Action.TRAIN, initial))

    start = dict(initial["adapter"].unpack().arrays())
    moved = [a - start[n] for n, a in reply.payloads["adapter"].unpack().arrays()]
    norm = np.sqrt(sum(np.square(each, dtype=np.float64).sum() for each in moved))
    assert norm == pytest.approx(0.01, rel=1e-4)
    assert 0 < reply.numbers["clip_factor"] < 1


def test_too_many_steps_are_refused(tmp_path, trainings):
    with Service(write_site(tmp_path, "max-local-steps = 4\n"), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL)).payloads
        reply = there.execute(ask(Action.TRAIN, initial))
        allowed = CONFIG.with_changes({"train.max-steps": 4})
        fewer = there.execute(ask(Action.TRAIN, initial, allowed))
        events = service.events()

    assert (reply.failure.kind, reply.failure.reason) == ("PolicyRefused", "max-local-steps")
    assert "at most 4, got 5" in reply.failure.message
    assert fewer.failure is None
    assert trainings == [1]
    (refused,) = (event for event in events if event["event"] == "refused")
    assert (refused["rule"], refused["action"]) == ("max-local-steps", "train")


def test_the_steps_of_a_sites_own_model_count_too(tmp_path, trainings):
    ditto = CONFIG.with_changes({"method": "ditto"})
    with Service(write_site(tmp_path, "max-local-steps = 9\n"), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL, config=ditto)).payloads
        reply = there.execute(ask(Action.TRAIN, initial, ditto))
        alone = there.execute(ask(Action.LOCAL_ONLY, initial, ditto))
    with Service(write_site(tmp_path, "max-local-steps = 10\n"), work=None) as service:
        allowed = RemoteSite(service.address).execute(ask(Action.TRAIN, initial, ditto))

    assert (reply.failure.kind, reply.failure.reason) == ("PolicyRefused", "max-local-steps")
    assert "at most 9, got 10" in reply.failure.message
    assert alone.failure is None, "that trains one model"
    assert allowed.numbers["steps"] + allowed.numbers["own_steps"] == 10
    assert trainings == [1]


def test_records_that_cannot_be_read_are_an_answer_and_then_read_again(tmp_path):
    path = write_site(tmp_path)
    whole = (tmp_path / "records.csv").read_text()
    (tmp_path / "records.csv").write_text("text,label,site\n ,ill,Bern\n")
    with Service(path, work=None) as service:
        there = RemoteSite(service.address)
        bad = there.describe(CONFIG, NAME)
        (tmp_path / "records.csv").write_text(whole)
        good = there.describe(CONFIG, NAME)

    assert bad.failure.kind == "DataError"
    assert good.failure is None


def test_the_coordinator_names_no_file_of_this_machine(tmp_path):
    elsewhere = CONFIG.with_changes({"data.source": "/etc/passwd", "data.text-column": "secret"})
    outside = str(tmp_path / "outside")
    with Service(write_site(tmp_path), work=None) as service:
        there = RemoteSite(service.address)
        described = there.describe(elsewhere, NAME)
        model = there.describe(CONFIG.with_changes({"model.source": outside}), NAME)
        initial = there.execute(ask(Action.INITIAL, config=elsewhere)).payloads
        reply = there.execute(
            replace(
                ask(Action.TRAIN, initial, elsewhere),
                progress_file=f"{outside}.jsonl",
                state_folder=outside,
            )
        )

    assert (described.failure, reply.failure) == (None, None)
    assert not list(tmp_path.glob("outside*"))
    assert model.failure.kind == "ConfigError"
    assert "names a folder, 'outside'" in model.failure.message
    assert str(tmp_path) not in model.failure.message


def test_a_base_model_of_this_machine_is_called_by_its_public_name(tmp_path):
    from client_app.tiny_models import tiny_encoder

    folder = tiny_encoder()
    named = CONFIG.with_changes({"model.source": "consortium/encoder"})
    path = write_site(tmp_path)
    path.write_text(path.read_text() + f'[models]\n"consortium/encoder" = "{folder}"\n')
    with Service(path, work=None) as service:
        reply = RemoteSite(service.address).describe(named, NAME)

    assert reply.failure is None
    assert reply.description["base_model"] == "consortium/encoder"
    assert str(folder) not in str(reply.description)


def test_a_training_is_called_off_at_its_next_step(tmp_path, trainings):
    long = CONFIG.with_changes({"train.local-epochs": 4000})
    with Service(write_site(tmp_path), work=None) as service:
        there = RemoteSite(service.address)
        initial = there.execute(ask(Action.INITIAL, config=long)).payloads

        original = service.work._watch

        def stop(step, steps, loss):
            service.work._task.cancelled.set()
            original(step, steps, loss)

        service.work._site[1]._watch = stop
        reply = there.execute(ask(Action.TRAIN, initial, long))
        service.work._site[1]._watch = original
        short = there.execute(ask(Action.TRAIN, initial, round=2))

    assert reply.failure.kind == "TaskCancelled"
    assert short.failure is None
