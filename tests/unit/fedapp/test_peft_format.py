import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open

from fedapp.adapter import Adapter, LoraPair
from fedapp.errors import ConfigError
from fedapp.peft_format import load_peft, save_peft

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none"}


def make_adapter(rank=2, scaling=3.0):
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    pairs = {name: LoraPair(normal(5, rank), normal(rank, 4), scaling) for name in ("x.q", "x.v")}
    return Adapter(pairs, {"classifier.weight": normal(3, 4), "classifier.bias": normal(3)})


def write(folder, arrays, config=CONFIG):
    """Write a folder by hand; arrays: name -> (dtype, shape, bytes)."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, data) in arrays.items():
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + body
    (folder / "adapter_model.safetensors").write_bytes(content)
    return folder


def lora(name, a_rn, b_mr):
    key = f"base_model.model.{name}.lora_"
    return {
        f"{key}A.weight": ("F32", list(a_rn.shape), a_rn.astype("<f4").tobytes()),
        f"{key}B.weight": ("F32", list(b_mr.shape), b_mr.astype("<f4").tobytes()),
    }


def test_round_trip_is_bit_exact_and_complete(tmp_path):
    adapter = make_adapter()
    save_peft(adapter, tmp_path / "adapter", CONFIG, "# card\n")
    assert load_peft(tmp_path / "adapter").digest() == adapter.digest()
    assert (tmp_path / "adapter" / "README.md").read_text() == "# card\n"
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", "numpy") as file:
        assert set(file.keys()) == {
            *(f"base_model.model.x.{n}.lora_{p}.weight" for n in "qv" for p in "AB"),
            "base_model.model.classifier.weight",
            "base_model.model.classifier.bias",
        }


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_folder_is_left_alone(tmp_path, kind):
    (tmp_path / "home").mkdir()
    target = tmp_path / "target"
    if kind == "link":
        target.symlink_to(tmp_path / "home")
    else:
        target.write_text("mine")
    with pytest.raises(ConfigError, match="target is a link or a file; name a folder"):
        save_peft(make_adapter(), target, CONFIG, "one")
    assert not any((tmp_path / "home").iterdir())


def test_a_saved_adapter_is_replaced_but_nothing_else(tmp_path):
    save_peft(make_adapter(), tmp_path / "adapter", CONFIG, "one")
    save_peft(make_adapter().map(lambda _, array: array + 1), tmp_path / "adapter", CONFIG, "two")
    assert (tmp_path / "adapter" / "README.md").read_text() == "two"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="home holds something other than an adapter"):
        save_peft(make_adapter(), tmp_path / "home", CONFIG, "three")
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_a_strided_array_is_written_in_its_order(tmp_path):
    adapter = make_adapter().map(lambda _, array: np.asfortranarray(array))
    save_peft(adapter, tmp_path / "a", CONFIG, "")
    np.testing.assert_array_equal(load_peft(tmp_path / "a").pairs["x.q"].a_rn,
                                  adapter.pairs["x.q"].a_rn)  # fmt: skip


def test_a_config_that_contradicts_the_scaling_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'x\.q' has scaling 1\.0.*would give it 3\.0"):
        save_peft(make_adapter(scaling=1.0), tmp_path / "adapter", CONFIG, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"x.q": 3.0, "x.v": 3.0}),
        ({"use_rslora": True}, {"x.q": 6 / 2**0.5, "x.v": 6 / 2**0.5}),
        ({"alpha_pattern": {"q": 1}}, {"x.q": 0.5, "x.v": 3.0}),
        ({"alpha_pattern": {"^x.v": 8}}, {"x.q": 3.0, "x.v": 4.0}),
    ],
)
def test_scaling_follows_peft(tmp_path, changes, expected):
    a_rn, b_mr = np.ones((2, 4)), np.ones((5, 2))
    arrays = lora("x.q", a_rn, b_mr) | lora("x.v", a_rn, b_mr)
    adapter = load_peft(write(tmp_path / "a", arrays, {**CONFIG, **changes}))
    assert {name: pair.scaling for name, pair in adapter.pairs.items()} == pytest.approx(expected)


def test_half_precision_is_widened_exactly(tmp_path):
    values = np.array([1.5, -3.0, 2.0**-100, 1e30], np.float32).view("<u4") >> 16
    halves = np.array([0.5, 65504.0], "<f2")
    folder = write(
        tmp_path / "a",
        {
            "base_model.model.w": ("BF16", [2, 2], values.astype("<u2").tobytes()),
            "base_model.model.h": ("F16", [2], halves.tobytes()),
        },
    )
    tensors = load_peft(folder).tensors
    np.testing.assert_array_equal(tensors["w"].ravel()[:3], [1.5, -3.0, 2.0**-100])
    assert tensors["w"].ravel()[3] == pytest.approx(1e30, rel=2**-7)
    np.testing.assert_array_equal(tensors["h"], [0.5, 65504.0])
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("arrays", "config", "sentence"),
    [
        ({}, {**CONFIG, "peft_type": "IA3"}, "does not describe a LoRA adapter"),
        ({}, {**CONFIG, "use_dora": True}, "uses use_dora"),
        ({}, {**CONFIG, "bias": "all"}, "uses bias"),
        ({}, [], "does not describe"),
        ({"other.w": ("F32", [1], b"\0" * 4)}, CONFIG, "'other.w' does not start"),
        ({"base_model.model.w": ("I64", [1], b"\0" * 8)}, CONFIG, "an array of type I64"),
        (
            {"base_model.model.q.lora_A.weight": ("F32", [1, 1], b"\0" * 4)},
            CONFIG,
            "one half of the pair 'q' only",
        ),
        (lora("q", np.ones((2, 4)), np.ones((5, 3))), CONFIG, r"'q'.*B \(5, 3\) and A \(2, 4\)"),
    ],
)
def test_a_foreign_adapter_is_refused_in_a_sentence(tmp_path, arrays, config, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_peft(write(tmp_path / "a", arrays, config))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"lora_alpha": "x"}, "lora_alpha must be a number"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a number"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number"),
        ({"lora_alpha": 0}, "lora_alpha must be a number"),
        ({"alpha_pattern": {"(a+)+b": 1}}, "alpha_pattern"),
        ({"alpha_pattern": [1]}, "alpha_pattern"),
    ],
)
def test_hostile_settings_are_refused_in_a_sentence(tmp_path, changes, sentence):
    write(tmp_path, lora("a" * 60, np.ones((2, 3), "f4"), np.ones((4, 2), "f4")), CONFIG | changes)

    with pytest.raises(ConfigError, match=sentence):
        load_peft(tmp_path)


@pytest.mark.parametrize("a_rn", [np.ones((), "f4"), np.ones((0, 3), "f4"), np.ones(3, "f4")])
def test_odd_shapes_are_refused_before_a_scaling_is_computed(tmp_path, a_rn):
    write(tmp_path, lora("x.q", a_rn, np.ones((4, 0), "f4")))

    with pytest.raises(ConfigError, match="shapes"):
        load_peft(tmp_path)


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    write(tmp_path, lora("x.q", np.full((2, 3), np.nan, "f4"), np.ones((4, 2), "f4")))

    with pytest.raises(ConfigError, match="NaN or infinite"):
        load_peft(tmp_path)


def test_missing_and_corrupt_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"not found: .*adapter_config\.json"):
        load_peft(tmp_path)
    save_peft(make_adapter(), tmp_path / "a", CONFIG, "")
    weights = tmp_path / "a" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors cannot be read"):
        load_peft(tmp_path / "a")
    weights.unlink()
    with pytest.raises(ConfigError, match=r"not found: .*adapter_model\.safetensors"):
        load_peft(tmp_path / "a")
    (tmp_path / "a" / "adapter_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"adapter_config\.json cannot be read"):
        load_peft(tmp_path / "a")


def test_the_coordinator_needs_no_torch_for_it():
    code = "import sys, fedapp.peft_format; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "arrays",
    [
        {"base_model.model.w": ("\x1b" * 9999, [1], b"\0" * 4)},
        {"\x1b" * 9999: ("F32", [1], b"\0" * 4)},
        {f"base_model.model.{'x' * 9999}.lora_A.weight": ("F32", [1, 1], b"\0" * 4)},
        lora("q\n" * 9999, np.ones((2, 4)), np.ones((5, 3))),
    ],
)
def test_what_a_file_says_is_not_repeated_at_length(tmp_path, arrays):
    with pytest.raises(ConfigError) as caught:
        load_peft(write(tmp_path / "a", arrays))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
