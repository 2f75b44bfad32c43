"""A site with the real tiny encoder: every action, seeds, faults, and what leaves the building."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import modeling_utils

import client_app
from client_app.data import SiteData
from client_app.data_digest import data_digest
from client_app.methods.base import LocalRule
from client_app.models import load_resident
from client_app.site import LocalSite
from fedapp.adapter import Adapter
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction, SiteDescription
from fedapp.increments import add

SETTINGS = {
    "model.source": "embedded:tiny-encoder",
    "model.max-length": 16,
    "lora.rank": 2,
    "lora.alpha": 4.0,
    "train.batch-size": 4,
    "train.local-epochs": 1,
    "train.threads": 1,
    "federation.rounds": 2,
}


def make_config(**flat):
    return RunConfig.from_flat({**SETTINGS, **flat})


def make_data(site="north", count=14):
    words = itertools.cycle(["chest pain", "no pain", "high pressure at rest", "fever", "normal"])
    records = [{"text": f"{next(words)} {i}", "label": i % 2} for i in range(count)]
    splits = {"train": records[:-4], "validation": records[-4:-2], "test": records[-2:]}
    return SiteData(site=site, label_map=["healthy", "ill"], splits=splits, notes=["a note"])


def run(site, action=Action.TRAIN, config=None, round=1, adapter=None, **kwargs):
    config = config or make_config()
    payloads = {} if adapter is None else {"adapter": pack(adapter)}
    return site.execute(
        Instruction(action, site.data.site, config, round, payloads=payloads, **kwargs)
    )


@pytest.fixture
def site():
    return LocalSite(make_data())


@pytest.fixture
def initial(site):
    """The initial adapter with B off zero, so that every array matters."""
    adapter = run(site, Action.INITIAL).payloads["adapter"].unpack()
    rng = np.random.default_rng(0)
    return adapter.map(lambda _, x: (x + 0.05 * rng.standard_normal(x.shape)).astype(np.float32))


def ok(reply):
    assert reply.failure is None, reply.failure
    return reply


def flat(adapter):
    return {name: array for name, array in adapter.arrays()}


def test_description_is_complete_and_agrees_with_the_initial_adapter(site):
    description = SiteDescription(**ok(run(site, Action.DESCRIBE, round=0)).description)
    sent = ok(run(site, Action.INITIAL, round=0)).payloads["adapter"].unpack()

    assert description.site == "north"
    assert description.initial_digest == sent.digest()
    assert description.layout_digest == sent.layout_digest()
    assert description.examples == {"train": 10, "validation": 2, "test": 2}
    assert description.label_map == ["healthy", "ill"]
    assert (description.rank, description.alpha) == (2, 4.0)
    assert description.heads == list(sent.tensors)
    assert (description.threads, description.notes) == (1, ["a note"])


def test_a_description_marks_the_records_and_counts_the_texts_that_are_cut():
    data = make_data()
    described = ok(run(LocalSite(data), Action.DESCRIBE)).description
    assert described["data_digest"] == data_digest(data)
    assert described["notes"] == ["a note"]

    for count, note in [
        (1, "1 training text longer than 16 tokens was cut"),
        (2, "2 training texts longer than 16 tokens were cut"),
    ]:
        data.splits["train"][count - 1]["text"] = "chest pain " * 20
        described = ok(run(LocalSite(data), Action.DESCRIBE)).description
        assert described["notes"] == ["a note", note]


def test_initial_adapter_is_exact_whatever_the_codec(site):
    config = make_config(**{"federation.codec": "int8"})

    sent = ok(run(site, Action.INITIAL, config)).payloads["adapter"].unpack()

    assert sent.digest() == ok(run(site, Action.DESCRIBE, config)).description["initial_digest"]


def test_train_sends_an_update_its_weight_and_metrics_before_and_after(site, initial):
    reply = ok(run(site, adapter=initial, splits=("validation", "test")))

    assert (reply.site, reply.round, reply.weight) == ("north", 1, 10.0)
    assert list(reply.metrics) == [
        "received/validation",
        "received/test",
        "personal/validation",
        "personal/test",
    ]
    assert reply.metrics["received/validation"]["examples"] == 2
    assert reply.metrics["received/validation"] != reply.metrics["personal/validation"]
    assert reply.numbers["steps"] == 3
    parts = reply.numbers["training_seconds"] + reply.numbers["evaluation_seconds"]
    assert 0 < parts <= reply.numbers["seconds"]
    update = reply.payloads["adapter"].unpack()
    assert update.layout_digest() == initial.layout_digest()
    assert all((flat(update)[name] != array).any() for name, array in initial.arrays())


def test_only_the_personal_model_is_measured_on_the_personal_splits(site, initial):
    reply = ok(run(site, adapter=initial, personal_splits=("validation", "test")))

    assert list(reply.metrics) == ["received/validation", "personal/validation", "personal/test"]


@pytest.mark.parametrize("method", ["fedavg", "fedsvd", "subspace-reg"])
def test_the_result_does_not_depend_on_what_ran_before(site, initial, method):
    config = make_config(method=method, **{"lora.dropout": 0.2})
    fresh = ok(run(site, config=config, adapter=initial))

    other = LocalSite(make_data("south", 20))
    run(other, config=make_config(**{"train.learning-rate": 0.1}), adapter=initial)
    torch.manual_seed(12345)
    run(site, Action.EVALUATE, config, adapter=initial)
    again = ok(run(LocalSite(make_data()), config=config, adapter=initial))
    next_round = ok(run(site, config=config, adapter=initial, round=2))

    digests = [r.payloads["adapter"].unpack().digest() for r in (fresh, again, next_round)]
    assert digests[0] == digests[1] != digests[2]
    assert fresh.metrics == again.metrics


def test_fedsvd_keeps_every_a(site, initial):
    update = ok(run(site, config=make_config(method="fedsvd"), adapter=initial))
    before, after = flat(initial), flat(update.payloads["adapter"].unpack())

    same = {name for name in before if np.array_equal(before[name], after[name])}

    assert same == {name for name in before if name.endswith(".lora_A")}


def test_subspace_reg_stays_nearer_to_what_was_received(site, initial):
    def distance(mu):
        config = make_config(
            **{"subspace-reg.mu": mu, "train.local-epochs": 4, "train.learning-rate": 0.01}
        )
        reply = ok(run(site, config=config, adapter=initial))
        update = reply.payloads["adapter"].unpack()
        return sum(
            np.linalg.norm(p.b_mr @ p.a_rn - initial.pairs[name].b_mr @ initial.pairs[name].a_rn)
            for name, p in update.pairs.items()
        )

    assert distance(1000.0) < 0.7 * distance(0.0)


def test_the_schedule_runs_over_the_whole_run(site, initial, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "client_app.training.learning_rate",
        lambda step, total, _: seen.append((step, total)) or 1e-3,
    )

    for number in (1, 2):
        ok(run(site, adapter=initial, round=number))
    ok(run(site, Action.LOCAL_ONLY, adapter=initial))

    assert seen == [(step, 6) for step in range(6)] * 2


def test_local_only_uses_the_budget_of_the_run_and_sends_no_weights(site, initial):
    reply = ok(run(site, Action.LOCAL_ONLY, adapter=initial, splits=("test",)))

    assert list(reply.metrics) == ["local-only/test"]
    assert reply.payloads == {}
    assert reply.numbers["steps"] == 6  # 2 rounds of 3


def test_evaluate_measures_what_was_received(site, initial):
    reply = ok(run(site, Action.EVALUATE, adapter=initial, splits=("test",)))
    trained = ok(run(site, adapter=initial, splits=("test",)))

    assert reply.metrics == {"received/test": trained.metrics["received/test"]}
    assert reply.payloads == {}


def test_records_are_tokenised_once(site, initial, monkeypatch):
    task = load_resident(make_config(), site.data.label_map).task
    prepared = []
    original = task.prepare
    monkeypatch.setattr(task, "prepare", lambda r: prepared.append(len(r)) or original(r))

    for number in (1, 2):
        ok(run(site, adapter=initial, round=number))

    assert prepared == [2, 10] or prepared == [10, 2]


def test_gradient_checkpointing_changes_memory_not_numbers(site, initial, monkeypatch):
    plain = ok(run(site, adapter=initial)).payloads["adapter"].unpack()
    config, calls = make_config(**{"train.gradient-checkpointing": True}), []
    original = modeling_utils.checkpoint
    monkeypatch.setattr(
        modeling_utils, "checkpoint", lambda *a, **k: calls.append(k) or original(*a, **k)
    )

    saved = ok(run(site, config=config, adapter=initial)).payloads["adapter"].unpack()

    assert len(calls) == 2 * 3, "two layers, three steps"
    for name, array in plain.arrays():
        np.testing.assert_allclose(flat(saved)[name], array, rtol=1e-4, atol=1e-6)
    again = ok(run(site, adapter=initial)).payloads["adapter"].unpack()
    assert len(calls) == 6, "off again afterwards"
    assert again.digest() == plain.digest()


def test_a_diverging_site_says_so_and_stays_usable(site, initial):
    before = ok(run(site, adapter=initial))
    config = make_config(
        **{
            "train.learning-rate": 100.0,
            "train.optimizer": "sgd",
            "train.clip-norm": 0.0,
            "train.local-epochs": 40,
        }
    )

    reply = run(site, config=config, adapter=initial, round=2)

    assert reply.failure.kind == "TrainingError"
    assert reply.failure.message.startswith("site north, round 2: ")
    assert "train.learning-rate" in reply.failure.message
    assert (reply.payloads, reply.weight) == ({}, 0.0)
    after = ok(run(site, adapter=initial))
    assert (
        after.payloads["adapter"].unpack().digest() == before.payloads["adapter"].unpack().digest()
    )


def test_bad_payloads_are_refused(site, initial):
    poisoned = initial.map(lambda name, x: np.full_like(x, np.nan) if "lora_B" in name else x)
    other = Adapter(dict(list(initial.pairs.items())[1:]), initial.tensors)

    failures = [run(site, adapter=a, round=3).failure for a in (None, poisoned, other)]

    assert [f.kind for f in failures] == ["UpdateRefused"] * 3
    assert all(f.message.startswith("site north, round 3: ") for f in failures)
    assert "no adapter" in failures[0].message
    assert "NaN" in failures[1].message


def test_data_faults_are_named(initial):
    data = make_data()
    data.splits["train"] = []
    site = LocalSite(data)

    assert "no training records" in run(site, adapter=initial).failure.message
    assert (
        "no split 'holdout'"
        in run(site, Action.EVALUATE, adapter=initial, splits=("holdout",)).failure.message
    )


def test_an_instruction_for_another_site_is_refused(site):
    reply = site.execute(Instruction(Action.DESCRIBE, "south", make_config()))

    assert reply.failure.kind == "HandshakeError"


def test_an_unexpected_error_leaves_without_its_text(site, initial, monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("record: patient Miller")

    monkeypatch.setattr("client_app.site.evaluate", fail)

    failure = run(site, adapter=initial).failure

    assert failure.kind == "UnexpectedError"
    assert "RuntimeError at client_app/site.py:" in failure.message
    assert "Miller" not in failure.message


def test_threads_are_put_back(site, initial):
    before = torch.get_num_threads()

    description = run(site, Action.DESCRIBE, make_config(**{"train.threads": before + 1}))

    assert ok(description).description["threads"] == before + 1
    assert torch.get_num_threads() == before


NEXT_TO_IT = {"run": "0a" * 16}


@pytest.fixture
def place(tmp_path):
    """Where a site of a run keeps what it needs between its rounds."""
    return {**NEXT_TO_IT, "state_folder": str(tmp_path / "sites")}


def digest(reply):
    return ok(reply).payloads["adapter"].layout.digest


@pytest.mark.parametrize("method", ["fedavg", "svd", "fedsvd", "subspace-reg"])
@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_a_short_update_is_the_increment_and_feeds_back(site, initial, place, method, codec):
    config = make_config(method=method, **{"federation.codec": codec})
    exact = ok(run(site, config=make_config(method=method), adapter=initial))
    bare = config.with_changes({"federation.error-feedback": False})

    first = ok(run(site, config=config, adapter=initial, **place))
    second = ok(run(site, config=config, adapter=initial, round=2, **place))
    other = ok(run(LocalSite(make_data()), config=bare, adapter=initial, round=2, **place))

    trained = flat(exact.payloads["adapter"].unpack())
    for name, array in flat(add(initial, first.payloads["adapter"].unpack())).items():
        work = np.abs(trained[name] - flat(initial)[name]).max()
        assert np.abs(array - trained[name]).max() <= 0.005 * work
    assert digest(second) != digest(other), "what round 1 lost is in it"
    assert (first.numbers["state_round"], second.numbers["state_round"]) == (0.0, 1.0)
    assert "state_round" not in other.numbers | exact.numbers


def test_a_repeat_and_another_process_give_the_same_update(site, initial, place):
    config = make_config(method="svd", **{"federation.codec": "int8"})
    rounds = [digest(run(site, config=config, adapter=initial, round=r, **place)) for r in (1, 2)]

    again = LocalSite(make_data())

    assert digest(run(again, config=config, adapter=initial, round=2, **place)) == rounds[1]
    assert digest(run(again, config=config, adapter=initial, round=1, **place)) == rounds[0]
    assert digest(run(site, config=config, adapter=initial, round=2, **place)) == rounds[1]


@pytest.mark.parametrize("lost", ["file", "folder", "content"])
def test_a_site_that_lost_its_state_starts_from_zero_and_says_so(site, initial, tmp_path, lost):
    config = make_config(**{"federation.codec": "int8"})
    place = {**NEXT_TO_IT, "state_folder": str(tmp_path / "sites")}
    fresh = {**NEXT_TO_IT, "state_folder": str(tmp_path / "others")}
    ok(run(site, config=config, adapter=initial, **place))
    (path,) = (tmp_path / "sites").rglob("*.safetensors")
    if lost == "file":
        path.unlink()
    elif lost == "folder":
        shutil.rmtree(tmp_path / "sites")
    else:
        path.write_bytes(path.read_bytes()[:100])

    reply = ok(run(site, config=config, adapter=initial, round=2, **place))

    assert reply.numbers["state_round"] == 0.0
    assert digest(reply) == digest(run(site, config=config, adapter=initial, round=2, **fresh))
    assert ok(run(site, config=config, adapter=initial, round=3, **place)).numbers[
        "state_round"
    ] == (2.0)


def test_in_fp32_a_site_keeps_nothing(site, initial, place, tmp_path):
    reply = ok(run(site, adapter=initial, **place))

    assert "state_round" not in reply.numbers
    assert not (tmp_path / "sites").exists()


def test_feedback_needs_a_place_before_it_trains(site, initial, monkeypatch):
    config = make_config(**{"federation.codec": "int8"})
    monkeypatch.setattr("client_app.site.train", lambda *a, **k: pytest.fail("it trains"))

    failure = run(site, config=config, adapter=initial, **NEXT_TO_IT).failure

    assert failure.kind == "ConfigError"
    assert "state-folder=" in failure.message


def test_without_a_run_each_update_is_encoded_alone(site, initial):
    config = make_config(**{"federation.codec": "int8"})

    digests = {digest(run(site, config=config, adapter=initial)) for _ in range(2)}

    assert len(digests) == 1


class Counts(LocalRule):
    """A method that remembers how often it has trained, and an offset."""

    def begin(self, received, settings, steps):
        self.before = received["adapter"]
        self.count = getattr(self, "count", 0)

    def state_dict(self):
        return {"count": self.count + 1, "offset": self.before}

    def load_state_dict(self, state):
        self.count = state["count"]
        assert state["offset"].is_finite()

    def numbers(self):
        return {"count": float(self.count)}


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_a_method_finds_again_what_it_kept(site, initial, place, codec, monkeypatch, tmp_path):
    monkeypatch.setattr("client_app.site.build_rule", Counts)
    config = make_config(**{"federation.codec": codec})

    counts = []
    for number in (1, 2, 2, 4):
        reply = ok(
            run(LocalSite(make_data()), config=config, adapter=initial, round=number, **place)
        )
        counts.append((reply.numbers["count"], reply.numbers["state_round"]))

    assert counts == [(0, 0), (1, 1), (1, 1), (2, 2)]
    assert run(site, config=config, adapter=initial).failure.kind == "TrainingError"
    assert not any(name.startswith("count") for name in reply.payloads), "it never leaves"


OTHER_PROCESS = """
import sys, torch
from tests_site import ok, run, make_config, make_data
from client_app.site import LocalSite
from fedapp.exchange import Action
torch.rand(5)
site = LocalSite(make_data())
adapter = ok(run(site, Action.INITIAL)).payloads["adapter"].unpack()
reply = ok(run(site, config=make_config(**{"lora.dropout": 0.2}), adapter=adapter))
print(reply.payloads["adapter"].unpack().digest())
"""


@pytest.mark.slow
def test_another_process_computes_the_same_bits(site, tmp_path):
    shutil.copy(__file__, tmp_path / "tests_site.py")
    root = Path(client_app.__file__).parents[1]
    adapter = ok(run(site, Action.INITIAL)).payloads["adapter"].unpack()
    reply = ok(run(site, config=make_config(**{"lora.dropout": 0.2}), adapter=adapter))

    other = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS],
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}",
            "PYTHONHASHSEED": "7",
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        },
        capture_output=True,
        text=True,
        check=True,
    )

    assert other.stdout.split()[-1] == reply.payloads["adapter"].unpack().digest()
