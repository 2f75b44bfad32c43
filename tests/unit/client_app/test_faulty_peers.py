"""Faulty sites where there is no coordinator: what lies in the mailbox is what the attack says."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from client_app.data import SiteData
from client_app.faults import strengths, with_faults
from client_app.site import LocalSite
from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction
from fedapp.injector import Situation, inject
from fedapp.mailbox import Delivery, Mailbox
from fedapp.peer_update import read_letter, write_letter
from fedapp.registry import METHODS

SETTINGS = {
    "method": "gossip-average",
    "model.source": "embedded:tiny-encoder",
    "model.max-length": 16,
    "lora.rank": 2,
    "lora.targets": "query",
    "train.batch-size": 4,
    "train.local-epochs": 1,
    "train.threads": 1,
    "federation.rounds": 3,
    "faults.sites": "north",
}
RUN = "0" * 32
HEAD = ("classifier.weight", "classifier.bias")


def make_config(**flat):
    given = {k.replace("__", ".").replace("_", "-"): v for k, v in flat.items()}
    return RunConfig.from_flat({**SETTINGS, **given})


def make_site(site="north"):
    words = itertools.cycle(["chest pain", "no pain", "high pressure at rest", "fever", "normal"])
    records = [{"text": f"{site} {next(words)} {i}", "label": i % 2} for i in range(14)]
    splits = {"train": records[:-4], "validation": records[-4:-2], "test": records[-2:]}
    return LocalSite(SiteData(site=site, label_map=["healthy", "ill"], splits=splits))


def ask(site, config, folder, action, round=1, initial=None):
    payloads = {} if initial is None else {"adapter": pack(initial)}
    reply = site.execute(
        Instruction(
            action, "north", config, round, payloads, run=RUN, state_folder=str(folder)
        )
    )  # fmt: skip
    assert reply.failure is None, reply.failure
    return reply


@pytest.fixture
def initial(tmp_path):
    site = make_site()
    packed = ask(site, make_config(), tmp_path, Action.INITIAL).payloads["adapter"]
    return packed.unpack()


def arrived(name, model, terms):
    """A letter as the node delivers it."""
    return replace(write_letter(name, model, terms, "fp32"), digest="d" * 64)


def published(folder, config, initial, round=1):
    letter = Mailbox.of(folder, "north", RUN).outgoing(round)
    codec = config.federation.codec
    limit = 10**9
    return letter, read_letter(
        letter, round=round, like=initial, terms=letter.terms, codec=codec, max_bytes=limit
    )


@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if m.peer_rule])
def test_every_method_publishes_the_attack(tmp_path, initial, method):
    config = make_config(method=method, faults__attack="sign-flip")
    honest = make_site()
    ask(honest, config, tmp_path / "honest", Action.PUBLISH, initial=initial)
    one, model = published(tmp_path / "honest", config, initial)

    ask(
        with_faults({"north": make_site()}, config)["north"],
        config,
        tmp_path / "faulty",
        Action.PUBLISH,
        initial=initial,
    )

    other, false = published(tmp_path / "faulty", config, initial)
    at = Situation(model, initial, [], [], HEAD, None, config.seed, "north", 1)
    assert false.digest() == inject("sign-flip", at, strengths(config)).digest()
    assert (one.terms, one.codec, one.origin) == (other.terms, other.codec, other.origin)


def test_the_start_of_a_round_is_what_the_site_mixed_in_the_last(tmp_path, initial):
    config = make_config(faults__attack="free-rider")
    site = with_faults({"north": make_site()}, config)["north"]
    box = Mailbox.of(tmp_path, "north", RUN)
    ask(site, config, tmp_path, Action.PUBLISH, initial=initial)
    letter, first = published(tmp_path, config, initial)
    assert first.digest() == initial.digest()
    moved = initial.map(lambda _, x: (x + 0.1).astype(np.float32))
    box.deliver(1, Delivery((arrived("south", moved, letter.terms),)))
    ask(site, config, tmp_path, Action.MIX, initial=initial)

    ask(site, config, tmp_path, Action.PUBLISH, 2, initial=initial)

    plain = make_site()
    ask(plain, config, tmp_path / "plain", Action.PUBLISH, initial=initial)
    _, trained = published(tmp_path / "plain", config, initial)
    _, second = published(tmp_path, config, initial, 2)
    expected = [
        (a + b) / 2 for (_, a), (_, b) in zip(trained.arrays(), moved.arrays(), strict=True)
    ]
    for (name, array), wanted in zip(second.arrays(), expected, strict=True):
        np.testing.assert_allclose(array, wanted, atol=1e-6, err_msg=name)


def test_colluders_know_what_honest_peers_sent_in_the_round_before(tmp_path, initial):
    config = make_config(faults__attack="alie", faults__sites="north,west", faults__z=0.5)
    site = with_faults({"north": make_site()}, config)["north"]
    ask(site, config, tmp_path, Action.PUBLISH, initial=initial)
    letter, first = published(tmp_path, config, initial)
    rng = np.random.default_rng(0)
    models = {
        name: initial.map(lambda _, x: (x + rng.standard_normal(x.shape)).astype(np.float32))
        for name in ("east", "south", "west")
    }
    letters = [arrived(name, model, letter.terms) for name, model in sorted(models.items())]
    Mailbox.of(tmp_path, "north", RUN).deliver(1, Delivery(tuple(letters)))
    ask(site, config, tmp_path, Action.MIX, initial=initial)

    ask(site, config, tmp_path, Action.PUBLISH, 2, initial=initial)

    _, second = published(tmp_path, config, initial, 2)
    known = [dict(models[name].arrays()) for name in ("east", "south")]
    for name, array in second.arrays():
        stack = np.stack([arrays[name] for arrays in known]).astype(float)
        np.testing.assert_allclose(array, stack.mean(0) - 0.5 * stack.std(0), atol=1e-6)
    assert first.digest() != second.digest()


def test_an_honest_peer_publishes_the_same_bytes_with_and_without_faults(tmp_path, initial):
    rehearsal = make_config(faults__sites="west")
    without = RunConfig.from_flat({k: v for k, v in SETTINGS.items() if "faults" not in k})
    letters = []
    for name, config in (("one", rehearsal), ("other", without)):
        site = with_faults({"north": make_site()}, config)["north"]
        assert type(site) is LocalSite
        ask(site, config, tmp_path / name, Action.PUBLISH, initial=initial)
        letters.append(published(tmp_path / name, config, initial)[0])

    assert letters[0] == letters[1]
