"""Every setting: bounds, suggestions, round trips, the digest, and files of any content."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import ValidationError

from fedapp.cli import toml
from fedapp.config import NEUTRAL, RunConfig, Setting, flatten, settings
from fedapp.errors import ConfigError
from fedapp.faults import ATTACKS
from fedapp.registry import ALGORITHMS, METHODS

ALL = {setting.key: setting for setting in settings()}
NAMES = ("lora.targets", "data.labels", "federation.held-out", "faults.sites")  # comma-separated


def bounds(setting: Setting) -> list[tuple[str, float]]:
    """Split a constraint such as ``>= 1, <= 8`` into signs and numbers."""
    found = re.findall(r"([<>]=?) ([^,]+)", setting.constraint)
    return [(sign, float(number)) for sign, number in found]


def options(setting: Setting) -> list[str]:
    """Split a constraint such as ``natural | iid``."""
    return setting.constraint.split(" | ") if isinstance(setting.value, str) else []


LIMITS = [(key, sign, limit) for key in ALL for sign, limit in bounds(ALL[key])]
CHOICES = [key for key in ALL if ALL[key].constraint and options(ALL[key])]


def refusal(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        function(*arguments)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Bounds ---------------------------------------------------------------------------------------


def test_every_number_has_a_bound_and_every_setting_a_meaning() -> None:
    for setting in ALL.values():
        assert setting.description
        assert setting.value == setting.default
        if isinstance(setting.value, int | float) and not isinstance(setting.value, bool):
            assert bounds(setting), setting.key


@pytest.mark.parametrize(("key", "sign", "limit"), LIMITS)
def test_a_number_out_of_bounds_is_refused_with_key_value_and_bound(
    key: str, sign: str, limit: float
) -> None:
    kind = type(ALL[key].value)
    step = {">=": -1, ">": 0, "<=": 1, "<": 0}[sign]
    beyond = kind(limit) + kind(step)

    sentence = refusal(RunConfig.from_flat, {key: beyond})

    words = {">=": "greater than or equal to", ">": "greater than", "<": "less than"}
    assert sentence.startswith(f"setting '{key}': ")
    assert sentence.endswith(f", got {beyond!r}")
    match = re.search(
        rf"should be {words.get(sign, 'less than or equal to')} ([-\d.e+]+),", sentence
    )
    assert match is not None, sentence
    assert float(match.group(1)) == limit


@pytest.mark.parametrize(("key", "sign", "limit"), [row for row in LIMITS if "=" in row[1]])
def test_a_number_at_its_bound_is_accepted(key: str, sign: str, limit: float) -> None:
    value = type(ALL[key].value)(limit)
    assert RunConfig.from_flat({key: value}).to_flat()[key] == value


@pytest.mark.parametrize("key", [k for k in ALL if isinstance(ALL[k].value, float)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused(key: str, value: float) -> None:
    assert f"setting '{key}': " in refusal(RunConfig.from_flat, {key: value})


@pytest.mark.parametrize("key", CHOICES)
def test_another_word_is_answered_with_all_that_are_allowed(key: str) -> None:
    sentence = refusal(RunConfig.from_flat, {key: "x"})

    assert sentence.startswith(f"setting '{key}': ")
    assert sentence.endswith(", got 'x'")
    assert all(f"'{option}'" in sentence for option in options(ALL[key]))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.batch-size", "many", "valid integer"),
        ("train.batch-size", 1.5, "valid integer"),
        ("train.learning-rate", "fast", "valid number"),
        ("train.tf32", "perhaps", "valid boolean"),
        ("federation.rounds", True, "expected a number"),
        ("train.learning-rate", False, "expected a number"),
        ("train.tf32", 1, "expected true or false"),
        ("train.tf32", 0.0, "expected true or false"),
        ("data.source", "a\0.csv", "without a NUL character"),
        ("lora.targets", "query,val\0ue", "without a NUL character"),
        ("data.source", 3, "valid string"),
        ("lora.targets", 3, "valid tuple"),
        ("name", "a/b", "pattern"),
        ("name", ".", "pattern"),
    ],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any, words: str) -> None:
    sentence = refusal(RunConfig.from_flat, {key: value})
    assert sentence.startswith(f"setting '{key}': ")
    assert words in sentence
    assert sentence.endswith(f"got {value!r}")


def test_a_name_longer_than_a_folder_may_be_is_refused() -> None:
    assert "pattern" in refusal(RunConfig.from_flat, {"name": "a" * 101})
    assert RunConfig.from_flat({"name": "a" * 100}).name == "a" * 100


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"method": "fedavq"}, "unknown method 'fedavq'; did you mean 'fedavg'?"),
        (
            {"data.validation-fraction": 0.5, "data.test-fraction": 0.5},
            "must stay below 1, got 0.5 + 0.5",
        ),
        ({"lora.targets": " , "}, "lora.targets is empty"),
        ({"model.trainable": "all"}, "method subspace-reg works on pairs; choose one of fedavg,"),
        (
            {"model.trainable": "all", "method": "ffa-lora"},
            "there are no LoRA pairs, and method ffa-lora works on pairs",
        ),
        (
            {"model.trainable": "all", "method": "fedavg", "federation.interference": True},
            "federation.interference is measured on LoRA pairs",
        ),
        (
            {"model.trainable": "all", "method": "fedavg", "model.quantization": "4bit"},
            "weights of 4bit cannot be trained",
        ),
        ({"model.task": "causal-lm", "data.labels": "a,b"}, "model.task is causal-lm, which has"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flat: dict[str, Any], words: str) -> None:
    assert words in refusal(RunConfig.from_flat, flat)


def test_a_config_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().train.batch_size = 3  # type: ignore[misc]


# Unknown keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("train.batchsize", "train.batch-size"),
        ("train.batch_size", "train.batch-size"),
        ("trian.batch-size", "train.batch-size"),
        ("lora.ranks", "lora.rank"),
        ("sed", "seed"),
        # the right name in the wrong section
        ("model.rank", "lora.rank"),
        ("data.learning-rate", "train.learning-rate"),
        ("train.rounds", "federation.rounds"),
        ("subspace-rag.alpha", "subspace-reg.alpha"),
        # a bare name
        ("rank", "lora.rank"),
        ("mu", "fedprox.mu"),
        ("rounds", "federation.rounds"),
        ("sites", "data.sites"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(key: str, meant: str) -> None:
    sentence = refusal(RunConfig.from_flat, {key: 1})
    assert sentence == f"unknown setting '{key}'; did you mean '{meant}'?"


@pytest.mark.parametrize("section", ["", "elsewhere."])
@pytest.mark.parametrize("name", sorted({key.partition(".")[2] for key in ALL if "." in key}))
def test_a_name_without_its_section_is_found(section: str, name: str) -> None:
    same = [key for key in ALL if key.rpartition(".")[2] == name]
    assert section + name not in ALL

    sentence = refusal(RunConfig.from_flat, {section + name: 1})

    assert any(sentence.endswith(f"did you mean '{key}'?") for key in same)


def test_a_key_like_no_other_points_to_the_list() -> None:
    assert refusal(RunConfig.from_flat, {"zzz": 1}) == (
        "unknown setting 'zzz'; see `fedapp config show`"
    )


# Files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "x.toml"


def test_tables_lists_and_dotted_keys_mean_the_same(file: Path) -> None:
    file.write_text('seed = 3\n[lora]\nrank = 2\ntargets = ["key", "value"]\n')

    config = RunConfig.from_toml(file, {"seed": 4})

    flat = {"seed": 4, "lora.rank": 2, "lora.targets": "key,value"}
    assert config == RunConfig.from_flat(flat)
    assert config.lora.targets == ("key", "value")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = ", "cannot be read"),
        ("\xff", "cannot be read"),
        ("seed = " + "9" * 5000, "cannot be read"),
        ("seed = " + "[" * 100_000, "cannot be read"),
        ("seed = 0x" + "f" * 5000, "setting 'seed': "),
        ("seed = 1979-05-27", "setting 'seed': "),
        ("[seed]\nx = 1", "unknown setting 'seed.x'"),
        ("train = 1", "unknown setting 'train'"),
        ('"" = 1', "unknown setting ''"),
        ('"a\\nb" = 1', r"unknown setting 'a\nb'"),
        ('data.source = "a"\nmodel.source = ["a"]\n[[train]]\nx = 1', "unknown setting 'train'"),
        ('data.labels = ["no", "yes, mild"]', "'data.labels': a name holds a comma"),
        ("method = '" + "x" * 500 + "'", "unknown method 'xxx"),
    ],
    ids=lambda value: value[:20],
)
def test_a_bad_file_is_one_sentence(file: Path, text: str, words: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    sentence = refusal(RunConfig.from_toml, file)
    assert words in sentence
    assert len(sentence) < 400 + len(str(file))


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    assert f"not found: {tmp_path}/x.toml" in refusal(RunConfig.from_toml, tmp_path / "x.toml")
    assert "cannot be read" in refusal(RunConfig.from_toml, tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "3", "{", '{"seed": NaN}', '{"seed": ' + "9" * 5000 + "}", "[" * 100_000],
    ids=lambda value: value[:20],
)
def test_bad_json_is_one_sentence(text: str) -> None:
    refusal(RunConfig.from_json, text)


KEYS = st.one_of(st.sampled_from(sorted(ALL)), st.text(max_size=12))
SCALARS = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.datetimes(), st.dates()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def as_toml(value: Any) -> str:
    """Write any value as TOML; tomllib reads back what this writes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml.literal(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return value.isoformat() if hasattr(value, "isoformat") else toml.literal(value)


@examples(deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_toml_gives_settings_or_one_sentence(file: Path, content: dict[str, Any]) -> None:
    lines = [f"{toml.literal(key)} = {as_toml(value)}" for key, value in content.items()]
    file.write_text("\n".join(lines), encoding="utf-8")
    settings_or_sentence(lambda: RunConfig.from_toml(file))


@examples(deadline=None)
@given(st.text())
def test_any_text_gives_settings_or_one_sentence(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    settings_or_sentence(lambda: RunConfig.from_toml(file))
    settings_or_sentence(lambda: RunConfig.from_json(text))


@examples(deadline=None)
@given(st.dictionaries(KEYS, st.none() | st.booleans() | st.integers() | st.floats() | VALUES))
def test_any_json_gives_settings_or_one_sentence(content: dict[str, Any]) -> None:
    settings_or_sentence(lambda: RunConfig.from_json(json.dumps(content, default=str)))


def settings_or_sentence(read: Callable[[], RunConfig]) -> None:
    try:
        config = read()
    except ConfigError as error:
        sentence, config = str(error), None
    for flat in (config.to_flat(), config.changed()) if config else ():
        assert RunConfig.from_flat(flat) == config
    assert config is not None or ("\n" not in sentence and sentence)


# Round trips and the digest -------------------------------------------------------------------


LETTER = st.characters(exclude_categories=["Cs"], exclude_characters="\0")


def valid(setting: Setting) -> st.SearchStrategy[Any]:
    """Draw any valid value of a setting."""
    if setting.key == "method":
        return st.sampled_from(sorted(METHODS))
    if setting.key == "name":
        return st.from_regex(r"\A([A-Za-z0-9_][A-Za-z0-9._-]{0,99})?\Z")
    if setting.key == "faults.attack":
        drawn = st.sets(st.sampled_from(ATTACKS), min_size=1)
        return drawn.map(lambda names: ",".join(a for a in ATTACKS if a in names))
    if setting.key in NAMES:
        name = (
            st.text(LETTER, max_size=8).map(str.strip).filter(lambda text: text and "," not in text)
        )
        return st.lists(name, min_size=setting.key == "lora.targets").map(",".join)
    if isinstance(setting.value, bool):
        return st.booleans()
    if isinstance(setting.value, str):
        return (
            st.sampled_from(options(setting))
            if setting.constraint
            else st.text(LETTER, max_size=30)
        )
    limits = dict(bounds(setting))
    low, high = limits.get(">=", limits.get(">")), limits.get("<=", limits.get("<"))
    if isinstance(setting.value, int):
        return st.integers(int(low or 0), None if high is None else int(high))
    return st.floats(
        low, high, exclude_min=">" in limits, exclude_max="<" in limits,
        allow_nan=False, allow_infinity=False,
    )  # fmt: skip


def measures_interference(flat: dict[str, Any]) -> bool:
    return bool(flat["federation.interference"] or flat["federation.interference-each"])


def agreeing(flat: dict[str, Any]) -> dict[str, Any]:
    """Settle what settings must agree on; to leave such draws out would leave few."""
    if flat["model.task"] in ("causal-lm", "multiple-choice"):
        flat["data.labels"] = ""
    if METHODS[flat["method"]].personal:
        flat["federation.held-out"] = ""
    if METHODS[flat["method"]].peer_rule:
        flat |= {"federation.algorithm": "fedavg", "federation.interference": False}
        flat["federation.interference-each"] = False
        flat |= {"federation.gsnr": 0, "lightyear.preset": "default"}
    for key, whole in (("prediction", -1), ("distance", 0), ("head-distance", 0)):
        if flat[f"lightyear.{key}"] < whole:  # between that and what stands for the default
            flat[f"lightyear.{key}"] = whole - 1.0
    if set(flat["faults.sites"].split(",")) & set(flat["federation.held-out"].split(",")):
        flat["faults.sites"] = ""
    if flat["train.optimizer"] != "sgd" or flat["method"] == "pflalign":
        flat["scaffold.variate"] = "gradients"
    if METHODS[flat["method"]].moves_basis and ALGORITHMS[flat["federation.algorithm"]].fixed_basis:
        flat["federation.algorithm"] = "fedavg"
    if flat["method"] == "dysco" and flat["dysco.rows"] < flat["lora.rank"]:
        flat["dysco.rows"] = 0
    if METHODS[flat["method"]].on_pairs or measures_interference(flat):
        flat["model.trainable"] = "lora"
    if flat["model.trainable"] == "all":
        flat["model.quantization"] = "none"
    tokens = min(flat["train.generate-tokens"], flat["model.max-length"] - 1)
    return {**flat, "train.generate-tokens": tokens}


@examples(deadline=None, max_examples=30)
@given(st.fixed_dictionaries({key: valid(setting) for key, setting in ALL.items()}).map(agreeing))
def test_settings_survive_every_form(file: Path, flat: dict[str, Any]) -> None:
    assume(flat["data.validation-fraction"] + flat["data.test-fraction"] < 1)
    config = RunConfig.from_flat(flat)
    file.write_text(toml.lines(config.to_flat()), encoding="utf-8")

    assert config.to_flat() == flat
    assert RunConfig.from_flat(config.to_flat()) == config
    assert RunConfig.from_flat(config.changed()) == config
    assert RunConfig.from_json(config.to_json()) == config
    assert RunConfig.from_toml(file) == config
    assert RunConfig().with_changes(flat) == config
    assert RunConfig.from_json(config.to_json()).digest() == config.digest()


def another(setting: Setting) -> Any:
    """Return a valid value other than the default."""
    if setting.key in ("method", "faults.attack"):
        return "svd" if setting.key == "method" else "random"
    if isinstance(setting.value, bool):
        return not setting.value
    if isinstance(setting.value, str | tuple):
        return next((o for o in options(setting) if o != setting.value), "x")
    if isinstance(setting.value, int):
        return setting.value + 1
    return setting.value / 2 if setting.value > 0 else 0.25


@pytest.mark.parametrize("key", [k for k in ALL if k != "model.task"])  # of which there is one
def test_the_digest_changes_with_exactly_the_settings_that_a_round_depends_on(key: str) -> None:
    # Not every method can train all weights.
    usual = RunConfig(method="fedavg" if key == "model.trainable" else RunConfig().method)
    config = usual.with_changes({key: another(ALL[key])})

    assert config != usual
    assert (config.digest() == usual.digest()) == (key in NEUTRAL)


def test_what_the_digest_leaves_out_are_settings() -> None:
    assert set(ALL) >= NEUTRAL
    assert {"name", "output-dir", "resume"} <= NEUTRAL
    assert not NEUTRAL & {"seed", "method", "federation.rounds", "federation.codec"}


def test_flatten_keeps_what_is_flat() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": [1, 2]}}, "e.f": "x"}) == {
        "a.b": 1,
        "a.c.d": "1,2",
        "e.f": "x",
    }
