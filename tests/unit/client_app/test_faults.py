"""Faulty sites by the real site, loop and codec: what leaves is what the attack's formula says."""

import itertools
import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import LABELS, site_data

from client_app import hosting
from client_app.data import SiteData
from client_app.faults import FaultySite, check_allowed, strengths, with_faults
from client_app.hosting import hosted_sites
from client_app.models import load_resident
from client_app.site import LocalSite
from fedapp import attacks
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, UpdateRefused
from fedapp.exchange import Action, Instruction
from fedapp.faults import ATTACKS
from fedapp.gates import relative_distance
from fedapp.increments import add
from fedapp.injector import Situation, inject
from server_app.app import build_strategy
from server_app.training_round import validate

SETTINGS = {
    "method": "fedavg",
    "model.source": "embedded:tiny-encoder",
    "model.max-length": 16,
    "lora.rank": 2,
    "lora.targets": "query",
    "train.batch-size": 4,
    "train.local-epochs": 1,
    "train.threads": 1,
    "federation.rounds": 4,
    "faults.sites": "north,west",
}
HEAD = ("classifier.weight", "classifier.bias")
NAMES = ("east", "north", "south", "west")
RUN = "0" * 32


def make_config(**flat):
    given = {k.replace("__", ".").replace("_", "-"): v for k, v in flat.items()}
    return RunConfig.from_flat({**SETTINGS, **given})


def make_data(site, count=14):
    words = itertools.cycle(["chest pain", "no pain", "high pressure at rest", "fever", "normal"])
    records = [{"text": f"{site} {next(words)} {i}", "label": i % 2} for i in range(count)]
    splits = {"train": records[:-4], "validation": records[-4:-2], "test": records[-2:]}
    return SiteData(site=site, label_map=["healthy", "ill"], splits=splits)


def ask(site, config, round=1, adapter=None, action=Action.TRAIN, **more):
    payloads = {} if adapter is None else {"adapter": pack(adapter)}
    reply = site.execute(
        Instruction(action, site.data.site, config, round, payloads=payloads, **more)
    )
    assert reply.failure is None, reply.failure
    return reply


def received_by_server(config, start, reply):
    """The update as the coordinator validates and decodes it."""
    strategy = build_strategy(config)
    strategy.begin(start)
    return validate(strategy, reply.round, reply).adapter


@pytest.fixture
def plain():
    return {name: LocalSite(make_data(name)) for name in NAMES}


@pytest.fixture
def start(plain):
    """The initial adapter with B off zero, so that every array matters."""
    adapter = ask(plain["north"], make_config(), action=Action.INITIAL).payloads["adapter"].unpack()
    rng = np.random.default_rng(0)
    return adapter.map(lambda _, x: (x + 0.05 * rng.standard_normal(x.shape)).astype(np.float32))


UNREPRODUCED = {"none", "label-flip", "neuron-permutation", "non-finite", "replay"}


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name not in UNREPRODUCED])
def test_the_server_receives_what_the_formula_says(plain, start, attack):
    config = make_config(faults__attack=attack)
    sites = with_faults(plain, config)
    trained = {
        name: ask(site, config, adapter=start).payloads["adapter"].unpack()
        for name, site in plain.items()
    }

    got = received_by_server(config, start, ask(sites["north"], config, adapter=start))

    honest = [trained["east"], trained["south"]]
    at = Situation(trained["north"], start, honest, [], HEAD, None, config.seed, "north", 1)
    assert got.digest() == inject(attack, at, strengths(config)).digest()
    assert got.digest() != trained["north"].digest()


def test_colluders_know_the_updates_of_this_very_round(plain, start):
    config = make_config(faults__attack="alie", faults__z=0.5)
    sites = with_faults(plain, config)
    honest = [
        dict(ask(plain[name], config, adapter=start).payloads["adapter"].unpack().arrays())
        for name in ("east", "south")
    ]

    sent = [received_by_server(config, start, ask(sites[name], config, adapter=start))
            for name in ("north", "west")]  # fmt: skip

    assert sent[0].digest() == sent[1].digest()
    for name, array in sent[0].arrays():
        stack = np.stack([arrays[name] for arrays in honest]).astype(float)
        np.testing.assert_allclose(array, stack.mean(0) - 0.5 * stack.std(0), atol=1e-6)


def test_two_colluders_of_a_process_compute_the_honest_updates_once(plain, start, monkeypatch):
    config = make_config(faults__attack="ipm")
    sites = with_faults(plain, config)
    asked = []
    execute = LocalSite.execute

    def counted(site, instruction):
        asked.append((type(site).__name__, instruction.site))
        return execute(site, instruction)

    monkeypatch.setattr(LocalSite, "execute", counted)
    for name in ("north", "west"):
        ask(sites[name], config, adapter=start)

    assert asked.count(("LocalSite", "east")) == asked.count(("LocalSite", "south")) == 1


def test_labels_are_flipped_in_training_alone(plain, start):
    config = make_config(faults__attack="label-flip")
    sites = with_faults(plain, config)
    data = make_data("north")
    flipped = [{**r, "label": 1 - r["label"]} for r in data.splits["train"]]
    other = LocalSite(replace(data, splits={**data.splits, "train": flipped}))

    reply = ask(sites["north"], config, adapter=start)

    expected = ask(other, config, adapter=start)
    assert reply.payloads["adapter"].unpack().digest() == (
        expected.payloads["adapter"].unpack().digest()
    )
    assert reply.metrics == expected.metrics
    assert [r["label"] for r in data.splits["train"]] == [i % 2 for i in range(10)]


def test_an_old_model_is_replayed(plain, start, tmp_path):
    config = make_config(faults__attack="replay", faults__delay=2, faults__from_round=2)
    place = {"run": RUN, "state_folder": str(tmp_path)}
    trained, sent, model = [], [], start
    for round in (1, 2, 3, 4):
        sites = with_faults(plain, config)  # as another process of a simulation
        trained.append(ask(plain["north"], config, round, model).payloads["adapter"].unpack())
        reply = ask(sites["north"], config, round, model, **place)
        sent.append(reply.payloads["adapter"].unpack().digest())
        model = trained[-1]

    digests = [each.digest() for each in trained]
    assert len(set(digests)) == 4
    assert sent == [digests[0], digests[0], digests[0], digests[1]]


@pytest.mark.parametrize(
    ("settings", "more", "sentence"),
    [
        ({"faults__attack": "replay"}, {}, "run without an identity"),
        ({"faults__attack": "replay"}, {"run": RUN}, "no folder for what faults.attack replay"),
        ({"faults__attack": "neuron-permutation"}, {}, "attack neuron-permutation: .*has none"),
    ],
)
def test_what_cannot_be_attacked_is_a_sentence(plain, start, settings, more, sentence):
    config = make_config(**settings)
    site = with_faults(plain, config)["north"]

    failure = site.execute(
        Instruction(Action.TRAIN, "north", config, 1, {"adapter": pack(start)}, **more)
    ).failure

    assert failure.kind == "ConfigError"
    assert re.search(sentence, failure.message), failure.message


@pytest.mark.parametrize("net", ["embedded:tiny-cnn", "embedded:conv4"])
def test_permuted_neurons_compute_the_same_and_are_another_model(net):
    config = make_config(
        model__source=net, model__task="image-classification", model__trainable="all",
        faults__attack="neuron-permutation",
    )  # fmt: skip
    plain = {name: LocalSite(site_data("image-classification", name)) for name in NAMES}
    start = ask(plain["north"], config, action=Action.INITIAL).payloads["adapter"].unpack()
    trained = ask(plain["north"], config, adapter=start).payloads["adapter"].unpack()

    reply = ask(with_faults(plain, config)["north"], config, adapter=start)

    sent = received_by_server(config, start, reply)
    resident = load_resident(config, LABELS)
    items = resident.task.prepare(plain["north"].data.splits["test"])
    outputs = []
    for model in (trained, sent):
        resident.parameters.load(model)
        resident.model.eval()
        with torch.inference_mode():
            outputs.append(resident.task.output(resident.model, resident.task.collate(items)))
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    for (name, one), (_, other) in zip(trained.arrays(), sent.arrays(), strict=True):
        assert np.sort(one, axis=None) == pytest.approx(np.sort(other, axis=None), abs=1e-6), name
    assert relative_distance(trained, sent) > 0.3


def test_what_is_not_finite_is_refused_by_name(plain, start):
    config = make_config(faults__attack="non-finite", faults__share=0.01)
    reply = ask(with_faults(plain, config)["north"], config, adapter=start)

    with pytest.raises(UpdateRefused) as caught:
        received_by_server(config, start, reply)
    assert (caught.value.reason, caught.value.site) == ("non-finite", "north")


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_a_compressed_update_is_attacked_before_it_is_rounded(plain, start, codec):
    config = make_config(faults__attack="scaling", faults__factor=-2.0, federation__codec=codec)
    honest = ask(plain["north"], config, adapter=start).payloads["adapter"].unpack()

    got = received_by_server(
        config, start, ask(with_faults(plain, config)["north"], config, adapter=start)
    )

    for (name, array), (_, expected) in zip(
        got.arrays(), attacks.scale(add(start, honest), -2.0).arrays(), strict=True
    ):
        assert np.abs(array - expected).max() <= 0.02 * np.abs(expected).max(), name


def test_before_its_first_round_a_faulty_site_is_honest(plain, start):
    config = make_config(faults__from_round=2)
    site = with_faults(plain, config)["north"]

    one, other = (ask(s, config, adapter=start) for s in (site, plain["north"]))

    assert one.payloads["adapter"].array.tobytes() == other.payloads["adapter"].array.tobytes()


def test_honest_sites_are_the_same_objects_and_send_the_same_bytes(plain, start):
    config = make_config(faults__attack="random")
    sites = with_faults(plain, config)
    without = RunConfig.from_flat({k: v for k, v in SETTINGS.items() if "faults" not in k})

    assert with_faults(plain, without) == plain
    assert type(sites["north"]) is FaultySite
    for name in ("east", "south"):
        assert sites[name] is plain[name]
        assert type(sites[name]) is LocalSite
        one = ask(sites[name], config, adapter=start)
        other = ask(LocalSite(make_data(name)), without, adapter=start)
        assert one.payloads["adapter"].array.tobytes() == other.payloads["adapter"].array.tobytes()
        assert one.metrics == other.metrics


def test_a_faulty_site_says_so_in_the_handshake_and_in_its_log(plain, start, caplog):
    config = make_config(faults__attack="random")
    sites = with_faults(plain, config)

    notes = ask(sites["north"], config, action=Action.DESCRIBE).description["notes"]
    with caplog.at_level(logging.WARNING):
        ask(sites["north"], config, adapter=start)

    assert notes[-1].startswith("REHEARSAL OF ATTACKS: north, west are faulty")
    assert ask(sites["east"], config, action=Action.DESCRIBE).description["notes"] == []
    assert "site north, round 1: FAULTY ON PURPOSE, attack random" in caplog.text


def test_a_deployed_node_refuses_a_rehearsal_unless_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(hosting, "_SITES", {})
    rows = [f"note {i} of {s},{'ill' if i % 2 else 'healthy'},{s}" for s in "ab" for i in range(20)]
    path = tmp_path / "d.csv"
    path.write_text("\n".join(["text,label,site", *rows]) + "\n")
    config = RunConfig.from_flat(
        {"data.source": str(path), "data.labels": "healthy,ill", "faults.sites": "a"}
    )

    for name in ("a", "b"):
        with pytest.raises(ConfigError, match=r"rehearsal in which a attack\(s\).*allow-faults"):
            hosted_sites(config, {"site": name})
    with pytest.raises(ConfigError):
        check_allowed(config, {"site": "a", "allow-faults": "true"})
    allowed = {"allow-faults": True}
    assert type(hosted_sites(config, {"site": "a", **allowed})["a"]) is FaultySite
    assert type(hosted_sites(config, {"site": "b", **allowed})["b"]) is LocalSite
    hosted_sites(config.with_changes({"faults.sites": ""}), {"site": "a"})


def test_a_deployed_colluder_knows_nobody(start):
    config = make_config(faults__attack="alie")
    site = with_faults({"north": LocalSite(make_data("north"))}, config)["north"]

    failure = site.execute(
        Instruction(Action.TRAIN, "north", config, 1, {"adapter": pack(start)})
    ).failure

    assert "which only a simulation knows" in failure.message
