from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_federation import HOSPITALS, FakeGrid, fails, flower_error, silent
from flwr.app import Message, RecordDict

import fedapp
from fedapp.config import RunConfig
from fedapp.default_settings import defaults_digest
from fedapp.errors import (
    ConfigError,
    DataError,
    DeviceError,
    HandshakeError,
    MissingReplies,
    WireError,
)
from fedapp.exchange import Action
from fedapp.results import RunFolder
from server_app.app import run
from server_app.handshake import shake_hands

Settings = Callable[..., RunConfig]


def test_the_roster_maps_names_to_nodes(settings: Settings) -> None:
    grid = FakeGrid(nodes=2)
    roster = shake_hands(grid, settings())

    assert roster.sites == sorted(HOSPITALS)
    for site, node in roster.nodes.items():
        assert site in grid.hosted[node]
    assert roster.largest_first(roster.sites) == sorted(HOSPITALS, key=lambda s: -HOSPITALS[s])


MISMATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "version": (
        {"package_version": "0.0.9"},
        f"fedapp version is '0.0.9', expected '{fedapp.__version__}' as the settings have it; "
        f"install fedapp {fedapp.__version__} there",
    ),
    "defaults": (
        {"defaults_digest": "d" * 64},
        f"digest of the default settings is '{'d' * 64}', expected "
        f"'{defaults_digest()}' as the settings have it; install the coordinator's very "
        "build of fedapp there",
    ),
    "torch": (
        {"torch_version": "2.12.1+cu128"},
        "torch version is '2.12.1', expected '2.13.0' as the other sites have it",
    ),
    "base model": (
        {"base_model_digest": "c" * 64},
        f"base model digest is '{'c' * 64}', expected '{'b' * 64}' as the other sites have it; "
        "give every site the same model files",
    ),
    "rank": ({"rank": 4}, "rank is 4, expected 2 as the settings have it"),
    "alpha": ({"alpha": 3.5}, "alpha is 3.5, expected 16.0 as the settings have it"),
    "targets": ({"targets": ["key", "value"]}, "targets is 'key, value', expected 'query, value'"),
    "heads": ({"heads": []}, "heads is '', expected 'classifier'"),
    "dtype": ({"dtype": "bf16"}, "dtype is 'bf16', expected 'fp32'"),
    "labels": (
        {"label_map": ["ill", "healthy"]},
        "label map is 'ill, healthy', expected 'healthy, ill' as the other sites have it; "
        "set data.labels to all labels in one order",
    ),
    "layout": ({"layout_digest": "1"}, "adapter layout digest is '1', expected"),
    "threads": ({"threads": 8}, "threads is 8, expected 1 as the other sites have it"),
    "initial": ({"initial_digest": "2"}, "initial adapter digest is '2', expected"),
    "name with a control character": (
        {"base_model": "org/model\n# heading"},
        r"base_model is 'org/model\n# heading', expected 1 to 512 printable characters without "
        "quotes or backslashes",
    ),
    "name with a quote": (
        {"base_model": 'x", evil="'},
        "base_model is 'x\", evil=\"', expected 1 to",
    ),
    "no name": ({"base_model": ""}, "base_model is '', expected 1 to 512"),
    "negative count": (
        {"examples": {"train": -1}},
        "field 'examples.train' of the description: Input should be greater than or equal to 0",
    ),
    "absurd count": (
        {"examples": {"train": 10**9 + 1}},
        "field 'examples.train' of the description: Input should be less than or equal to",
    ),
    "task": ({"task": "causal-lm"}, "task is 'causal-lm', expected 'sequence-classification'"),
}


@pytest.mark.parametrize("site", ["Cleveland", "VA Long Beach"])
@pytest.mark.parametrize("name", MISMATCHES)
def test_the_odd_site_out_is_named(settings: Settings, name: str, site: str) -> None:
    changes, sentence = MISMATCHES[name]
    grid = FakeGrid()
    grid.sites[site].changes = changes

    with pytest.raises(HandshakeError) as caught:
        shake_hands(grid, settings())
    assert str(caught.value).startswith(f"site {site}: {sentence}")
    assert caught.value.exit_code == 4


PEFT_MISMATCHES = {
    "r": (4, "4, expected 2 as the settings have it"),
    "lora_alpha": (3, "3, expected 16.0 as the settings have it"),
    "target_modules": (["key"], "'key', expected 'query, value' as the settings have it"),
    "task_type": ("CAUSAL_LM", "'CAUSAL_LM', expected 'SEQ_CLS' as the settings have it"),
    "peft_type": (None, "None, expected 'LORA' as the settings have it"),
    "use_dora": (True, "True, expected None as the other sites have it"),
    "modules_to_save": ([], "'', expected 'classifier' as the other sites have it"),
    "base_model_name_or_path": ("evil/model", "'evil/model', expected 'fake/model' as the other"),
    "auto_mapping": ({"parent_library": "evil"}, "{'parent_library': 'evil'}, expected nothing"),
    "alpha_pattern": ({"query": 64}, "{'query': 64}, expected nothing"),
    "rank_pattern": ({"query": 64}, "{'query': 64}, expected nothing"),
}


@pytest.mark.parametrize("key", PEFT_MISMATCHES)
def test_what_is_published_agrees_with_the_settings_and_all_sites(
    settings: Settings, key: str
) -> None:
    value, sentence = PEFT_MISMATCHES[key]
    grid, config = FakeGrid(), settings()
    honest = grid.sites["Hungary"]._describe(config)["peft_config"]
    grid.sites["Hungary"].changes = {"peft_config": {**honest, key: value}}

    with pytest.raises(HandshakeError) as caught:
        shake_hands(grid, config)
    assert str(caught.value).startswith(f"site Hungary: peft_config.{key} is {sentence}")


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a\u202eb", 5, "x" * 513])
def test_no_base_model_name_breaks_out_of_the_model_card(settings: Settings, name: Any) -> None:
    grid, config = FakeGrid(), settings()
    for site in grid.sites.values():
        honest = site._describe(config)["peft_config"]
        site.changes = {"peft_config": {**honest, "base_model_name_or_path": name}}

    with pytest.raises(HandshakeError, match=r"peft_config\.base_model_name_or_path is") as caught:
        shake_hands(grid, config)
    assert str(caught.value).isprintable()


def test_the_cause_is_named_before_its_effects(settings: Settings) -> None:
    grid = FakeGrid()
    grid.sites["Hungary"].changes = {
        "initial_digest": "2",
        "layout_digest": "1",
        "rank": 4,
    }

    with pytest.raises(HandshakeError, match="site Hungary: rank is 4, expected 2"):
        shake_hands(grid, settings())


def test_builds_of_one_torch_version_are_equal(settings: Settings) -> None:
    grid = FakeGrid()
    grid.sites["Hungary"].changes = {"torch_version": "2.13.0+cu128"}

    shake_hands(grid, settings())


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("DataError", DataError),
        ("DeviceError", DeviceError),
        ("UnexpectedError", HandshakeError),
        ("print", HandshakeError),
        ("UpdateRefused", HandshakeError),
    ],
)
def test_a_site_that_cannot_start_stops_the_run_with_its_sentence(
    settings: Settings, kind: str, error: type[Exception]
) -> None:
    grid = FakeGrid()
    fault = fails(kind, "site Hungary: column 'age' is missing")
    grid.inject("Hungary", fault, round=0, action=Action.DESCRIBE)
    config = settings()
    folder = RunFolder.create(config)

    with pytest.raises(error) as caught:
        run(grid, config, folder, 3)
    assert type(caught.value) is error
    assert str(caught.value) == "site Hungary: column 'age' is missing"
    status = folder.read_status()
    assert status["error"] == "site Hungary: column 'age' is missing"
    assert status["exit_code"] == error.exit_code  # type: ignore[attr-defined]


def test_several_sites_that_cannot_start_are_all_named(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = FakeGrid()
    problems = {"Cleveland": "no records", "Hungary": "no records", "Switzerland": "no labels"}
    for site, problem in problems.items():
        fault = fails("DataError", f"site {site}: {problem}")
        grid.inject(site, fault, round=0, action=Action.DESCRIBE)

    with pytest.raises(DataError) as caught:
        shake_hands(grid, settings())

    assert str(caught.value) == (
        "site Cleveland: no records (the same at Hungary) (other problems at Switzerland, see "
        "above)"
    )
    assert "warning: site Switzerland: no labels\n" in capsys.readouterr().out


def test_a_failure_is_told_while_others_are_silent(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server_app.handshake.FAILURE_GRACE_SECONDS", 0.3)
    grid = FakeGrid()
    grid.inject("Cleveland", silent, round=0, action=Action.DESCRIBE)
    fault = fails("DataError", "site Hungary: no records")
    grid.inject("Hungary", fault, round=0, action=Action.DESCRIBE)

    started = time.monotonic()
    with pytest.raises(DataError, match="site Hungary: no records"):
        shake_hands(grid, settings(federation__handshake_timeout=60))
    assert time.monotonic() - started < 30


def test_a_node_whose_app_dies_is_reported(settings: Settings) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", flower_error, round=0, action=Action.DESCRIBE)

    with pytest.raises(HandshakeError, match="RuntimeError: the client app crashed"):
        shake_hands(grid, settings())


def test_a_silent_node_is_left_out_if_enough_others_are_there(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", silent, round=0, action=Action.DESCRIBE)

    roster = shake_hands(grid, settings())

    assert "Hungary" not in roster.sites
    assert "1 node(s) did not answer" in capsys.readouterr().out


def test_too_few_sites_end_the_wait(settings: Settings) -> None:
    config = settings(federation__min_sites=5)

    started = time.monotonic()
    with pytest.raises(MissingReplies, match=r"4 of at least 5 sites connected within 0.3 s"):
        shake_hands(FakeGrid(), config)
    assert time.monotonic() - started < 30
    with pytest.raises(MissingReplies, match=r"0 of at least 2 sites .*present: none"):
        shake_hands(FakeGrid({}), settings())


def test_a_failure_ends_the_wait_for_more_sites(settings: Settings) -> None:
    grid = FakeGrid({"Hungary": 59})
    fault = fails("DataError", "site Hungary: column 'age' is missing")
    grid.inject("Hungary", fault, round=0, action=Action.DESCRIBE)

    started = time.monotonic()
    with pytest.raises(DataError, match="site Hungary: column 'age' is missing"):
        shake_hands(grid, settings(federation__connect_timeout=60))
    assert time.monotonic() - started < 30


def test_good_answers_wait_for_more_sites_to_come(settings: Settings) -> None:
    grid, polls = FakeGrid(), 0
    late = dict(list(grid.hosted.items())[1:])
    for node in late:
        del grid.hosted[node]

    def after_a_while() -> None:
        nonlocal polls
        polls += 1
        grid.hosted |= late if polls > 1 else {}

    grid.before_pull = after_a_while
    original = grid.get_node_ids

    def nodes() -> Any:
        after_a_while()
        return original()

    grid.get_node_ids = nodes  # type: ignore[method-assign]
    roster = shake_hands(grid, settings(federation__min_sites=4, federation__connect_timeout=30))

    assert roster.sites == sorted(HOSPITALS)


def test_a_node_that_flower_cannot_reach_is_not_waited_for(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = FakeGrid()
    grid.refused = {("Hungary", Action.DESCRIBE, 0)}

    started = time.monotonic()
    roster = shake_hands(
        grid, settings(federation__connect_timeout=60, federation__handshake_timeout=60)
    )

    assert time.monotonic() - started < 30
    assert "Hungary" not in roster.sites
    text = capsys.readouterr().out
    assert text.count("warning: Flower did not take the request to node") == 1


def test_an_answer_that_cannot_be_read_names_its_node(settings: Settings) -> None:
    grid = FakeGrid()
    home = next(node for node, sites in grid.hosted.items() if sites == ["Hungary"])
    original = grid._deliver

    def garbled(message: Message) -> Message | None:
        if message.metadata.dst_node_id == home:
            return Message(RecordDict(), reply_to=message)
        return original(message)

    grid._deliver = garbled  # type: ignore[method-assign]
    with pytest.raises(WireError, match=f"the answer of node {home}: the message has no fedapp"):
        shake_hands(grid, settings())


def test_nodes_may_come_one_after_the_other(settings: Settings) -> None:
    grid = FakeGrid()
    late, calls = dict(grid.hosted), 0
    grid.hosted.clear()
    original = grid.get_node_ids

    def one_more() -> Any:
        nonlocal calls
        calls += 1
        if late:
            node, sites = late.popitem()
            grid.hosted[node] = sites
        return original()

    grid.get_node_ids = one_more  # type: ignore[method-assign]
    roster = shake_hands(grid, settings(federation__min_sites=4, federation__connect_timeout=30))

    assert roster.sites == sorted(HOSPITALS)


def test_two_nodes_with_one_name_are_refused(settings: Settings) -> None:
    grid = FakeGrid()
    nodes = list(grid.hosted)
    grid.hosted[nodes[0]] = ["Hungary"]
    grid.hosted[nodes[1]] = ["Hungary"]

    with pytest.raises(HandshakeError, match="site Hungary: two nodes say"):
        shake_hands(grid, settings())


def test_a_malformed_description_is_refused(settings: Settings) -> None:
    grid = FakeGrid()
    grid.sites["Hungary"].changes = {"rank": "many"}

    with pytest.raises(HandshakeError, match="site Hungary: field 'rank' of the description"):
        shake_hands(grid, settings())


@pytest.mark.parametrize(("offset", "warned"), [(-3600.0, True), (90.0, True), (-30.0, False)])
def test_a_clock_that_is_off_is_warned_of(
    settings: Settings, capsys: pytest.CaptureFixture[str], offset: float, warned: bool
) -> None:
    grid = FakeGrid()
    grid.sites["Hungary"].changes = {"clock": time.time() + offset}

    roster = shake_hands(grid, settings())

    assert roster.members["Hungary"].clock_offset == pytest.approx(offset, abs=5)
    assert roster.members["Cleveland"].clock_offset == 0.0
    text = capsys.readouterr().out
    assert ("warning: site Hungary: its clock is" in text) is warned


def test_held_out_sites_must_exist(settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r"names 'Hungaria', but the sites are Cleveland"):
        shake_hands(FakeGrid(), settings(federation__held_out="Hungaria"))


def test_an_initial_adapter_that_is_not_the_announced_one_is_passed_over(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    from fake_federation import poisoned

    grid, config = FakeGrid(), settings()
    grid.inject("Cleveland", poisoned(1.0), round=0, action=Action.INITIAL)
    folder = RunFolder.create(config)
    run(grid, config, folder, 1)

    assert folder.read_status()["state"] == "completed"
    assert "site Cleveland: the initial adapter has digest" in capsys.readouterr().out


def test_without_any_initial_adapter_the_run_ends(settings: Settings) -> None:
    grid, config = FakeGrid(), settings()
    for site in grid.sites:
        grid.inject(site, silent, round=0, action=Action.INITIAL)

    with pytest.raises(HandshakeError, match="no site sent the initial adapter: site Cleveland"):
        run(grid, config, RunFolder.create(config), 1)
