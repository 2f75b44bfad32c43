"""Random TOML: settings, or one line that names the key; never anything else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import mutate_text

from fedapp.cli import toml
from fedapp.cli.overrides import read_overrides
from fedapp.cli.settings import app_settings
from fedapp.config import RunConfig
from fedapp.config import settings as all_settings
from fedapp.errors import ConfigError

DEFAULTS = RunConfig().to_flat()
NUMBERS = [key for key, value in DEFAULTS.items() if type(value) in (int, float)]
BOOLEANS = [key for key, value in DEFAULTS.items() if type(value) is bool]
TEXTS = [key for key, value in DEFAULTS.items() if isinstance(value, str)]
EXAMPLES = settings(deadline=None, max_examples=60)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "x.toml"


def settings_or_sentence(read: Callable[[], RunConfig]) -> str:
    """Return the sentence, or nothing if there are settings that survive a round trip."""
    try:
        config = read()
    except ConfigError as error:
        sentence = str(error)
    else:
        assert RunConfig.from_flat(config.to_flat()) == config
        assert RunConfig.from_json(config.to_json()) == config
        return ""
    assert sentence
    assert "\n" not in sentence
    assert len(sentence) < 1500
    return sentence


# ---- any spelling ------------------------------------------------------------------------------


def spelled(value: Any, rng: random.Random) -> str:
    """Write a value in any of TOML's ways."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        ways = [f"{value}", f"{value:_}", f"{value:+}", f"{value:#x}", f"{value:#o}", f"{value:#b}"]
        return rng.choice(ways)
    if isinstance(value, float):
        return rng.choice([f"{value!r}", f"{value:.17e}", f"{value:+}"])
    ways = [toml.literal(value), "".join(["'''", value, "'''"])]
    if "," in value and value:
        ways.append("[" + ", ".join(map(toml.literal, value.split(","))) + ",]")
    return rng.choice(ways)


def document(flat: dict[str, Any], rng: random.Random) -> str:
    """Write settings as dotted keys, tables, inline tables and quoted keys, in any order."""
    sections: dict[str, list[str]] = {}
    items = list(flat.items())
    rng.shuffle(items)
    for key, value in items:
        section, _, name = key.rpartition(".")
        shown = rng.choice([name, f'"{name}"', f"'{name}'"])
        sections.setdefault(section, []).append(f"{shown} = {spelled(value, rng)}")
    lines = sections.pop("", [])
    tables = []
    for section, entries in sections.items():
        way = rng.randrange(3)
        if way == 0:
            lines += [f"{section} . {entry}" for entry in entries]
        elif way == 1:
            lines.append(f"{section} = {{ {', '.join(entries)} }}")
        else:
            tables += [f"[ {section} ] # settings", *entries]
    return "\r\n".join([*lines, *tables]) + rng.choice(["", "\n"])


@EXAMPLES
@given(keys=st.sets(st.sampled_from(sorted(DEFAULTS)), max_size=20), seed=st.integers(0, 10**6))
def test_any_spelling_means_the_same(file: Path, keys: set[str], seed: int) -> None:
    flat = {key: DEFAULTS[key] for key in keys}
    for key in keys & {"seed", "train.batch-size", "federation.rounds"}:
        flat[key] = 1 + seed % 65536
    for key in keys & {"train.learning-rate", "lora.alpha"}:
        flat[key] = (1 + seed) / 2**14
    text = document(flat, random.Random(seed))
    file.write_text(text, encoding="utf-8", newline="")

    assert RunConfig.from_toml(file) == RunConfig.from_flat(flat), text


# ---- anything ----------------------------------------------------------------------------------

KEYS = st.one_of(
    st.sampled_from(sorted(DEFAULTS)),
    st.sampled_from(["lora", "train", "Lora.rank", "lora.rank.x", "a..b", ".", "lora."]),
    st.text(max_size=12),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=5)
    | st.integers(10**300, 10**301) | st.dates() | st.times() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2)
    | st.tuples(inner),
    max_leaves=6,
)  # fmt: skip


@EXAMPLES
@given(key=KEYS, value=VALUES)
def test_a_wrong_setting_is_named(key: str, value: Any) -> None:
    sentence = settings_or_sentence(lambda: RunConfig.from_flat({key: value}))

    if sentence:
        assert repr(key) in sentence or f"'{key}'" in sentence or key in sentence
    else:
        assert key in DEFAULTS


@EXAMPLES
@given(flat=st.dictionaries(KEYS, VALUES, min_size=2, max_size=6))
def test_any_settings_are_settings_or_one_sentence(flat: dict[str, Any]) -> None:
    settings_or_sentence(lambda: RunConfig.from_flat(flat))


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [True, False, "1 2", "", [1], {}, None])
def test_what_is_no_number_is_refused_as_one(key: str, value: Any) -> None:
    sentence = settings_or_sentence(lambda: RunConfig.from_flat({key: value}))
    assert sentence.startswith(f"setting '{key}': ")


@pytest.mark.parametrize("key", BOOLEANS)
@pytest.mark.parametrize("value", [0, 1, 2, 1.0, "maybe", [], None])
def test_what_is_neither_true_nor_false_is_refused(key: str, value: Any) -> None:
    sentence = settings_or_sentence(lambda: RunConfig.from_flat({key: value}))
    assert sentence.startswith(f"setting '{key}': ")


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("value", ["a\0b", "a\ud800", 1, True, None])
def test_what_is_no_text_is_refused(key: str, value: Any) -> None:
    sentence = settings_or_sentence(lambda: RunConfig.from_flat({key: value}))
    assert sentence.startswith(f"setting '{key}': ") or "unknown method" in sentence


@EXAMPLES
@given(option=st.one_of(
    st.text(max_size=40),
    st.tuples(KEYS, st.text(max_size=20)).map(lambda pair: f"{pair[0]}={pair[1]}"),
    st.lists(st.sampled_from(sorted(DEFAULTS)), max_size=3).map(lambda k: "=1 ".join(k) + "=0"),
))  # fmt: skip
def test_any_option_is_settings_or_one_sentence(option: str) -> None:
    settings_or_sentence(lambda: RunConfig.from_flat(read_overrides([option])))


@pytest.mark.parametrize(
    ("count", "seed"), [(120, 0), pytest.param(4000, 1, marks=pytest.mark.slow)]
)
def test_a_damaged_file_is_settings_or_one_sentence(tmp_path: Path, count: int, seed: int) -> None:
    """The whole file of settings as it is printed, with something odd in it."""
    rng, honest = random.Random(seed), toml.lines(DEFAULTS)
    path, app, refused = tmp_path / "x.toml", tmp_path / "pyproject.toml", 0
    odd = ["[[lora]]", "[lora.rank]", "x = 1979-05-27T07:32:00Z", "y = 07:32:00", "z = inf",
           "[a]\n[a]", "lora = []", "seed = 0b1", "a.b.c.d.e = {f = [[[1]]]}"]  # fmt: skip
    for _ in range(count):
        lines = honest.splitlines(keepends=True)
        if rng.random() < 0.3:
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(odd) + "\n")
        start = rng.randrange(len(lines))
        lines[start : start + 3] = [mutate_text(rng, "".join(lines[start : start + 3]))]
        data = "".join(lines).encode(errors="surrogatepass")
        path.write_bytes(data)
        refused += bool(settings_or_sentence(lambda: RunConfig.from_toml(path)))
        app.write_bytes(b"[tool.flwr.app.config]\n" + data)
        settings_or_sentence(lambda: RunConfig.from_flat(app_settings(tmp_path)))
    assert 0.3 * count < refused < count


def test_every_setting_says_what_it_is() -> None:
    for setting in all_settings():
        assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)?", setting.key)
