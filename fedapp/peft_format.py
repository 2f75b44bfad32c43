"""An adapter as the folder that plain PEFT reads and writes; no torch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save_file

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.atomic_folder import write_folder
from fedapp.errors import ConfigError
from fedapp.peft_names import Part, from_peft, to_peft
from fedapp.text import clean, shown

CONFIG_FILE = "adapter_config.json"
# PEFT takes these for regular expressions; a name is all that anybody writes, and harmless.
_LAYER = re.compile(r"\^?[\w.]{1,500}")
WEIGHTS_FILE = "adapter_model.safetensors"
_LONGEST_REASON = 300


def save_peft(
    adapter: Adapter, folder: Path, peft_config: Mapping[str, Any], card_text: str
) -> None:
    """Write ``adapter_config.json``, ``adapter_model.safetensors`` and the model card atomically.

    ``PeftModel.from_pretrained(base, folder)`` loads the result.

    Parameters
    ----------
    adapter : Adapter
    folder : Path
        Replaced if it holds an adapter; any other folder with content is left alone.
    peft_config : mapping
        Content of ``adapter_config.json``, such as ``ResidentModel.peft_config``.
    card_text : str
        Content of ``README.md``.

    Raises
    ------
    ConfigError
        If the folder is none or holds something else, or ``peft_config`` contradicts the
        adapter's scaling.
    OSError
        If it cannot be written; what was there before stays.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"{folder} is a link or a file; name a folder that is none yet")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG_FILE).is_file():
        raise ConfigError(f"{folder} holds something other than an adapter; name another folder")
    for name, pair in adapter.pairs.items():
        scaling = _scaling(name, pair.rank, peft_config)
        if not math.isclose(scaling, pair.scaling, rel_tol=1e-6):
            raise ConfigError(
                f"adapter pair '{name}' has scaling {pair.scaling}, "
                f"but {CONFIG_FILE} would give it {scaling}"
            )
    arrays: dict[str, Array] = {}
    for name, pair in adapter.pairs.items():
        arrays[to_peft(name, "a")] = _contiguous(pair.a_rn)
        arrays[to_peft(name, "b")] = _contiguous(pair.b_mr)
    for name, tensor in adapter.tensors.items():
        arrays[to_peft(name, "tensor")] = _contiguous(tensor)

    def fill(temporary: Path) -> None:
        # transformers and PEFT expect the format tag
        save_file(arrays, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
        text = json.dumps(dict(peft_config), indent=2, sort_keys=True)
        (temporary / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
        (temporary / "README.md").write_text(card_text, encoding="utf-8")

    write_folder(folder, fill)


def load_peft(folder: Path) -> Adapter:
    """Read an adapter that `save_peft` or PEFT itself has written.

    Half-precision numbers are widened to fp32. Per-layer ranks and alphas are honoured.

    Raises
    ------
    ConfigError
        If a file is missing or malformed, or the adapter is not plain LoRA.
    """
    config = read_peft_config(folder)
    path = folder / WEIGHTS_FILE
    try:
        entries = _entries(path)
    except FileNotFoundError:
        raise ConfigError(f"adapter file not found: {path}") from None
    except (OSError, SafetensorError) as error:
        reason = clean(str(error), _LONGEST_REASON)
        raise ConfigError(f"adapter file {path} cannot be read: {reason}") from None
    parts: dict[Part, dict[str, Array]] = {"a": {}, "b": {}, "tensor": {}}
    for key, entry in entries:
        try:
            name, part = from_peft(key)
            parts[part][name] = _fp32(entry)
        except ValueError as error:
            reason = clean(str(error), _LONGEST_REASON)
            raise ConfigError(f"adapter file {path} is not plain LoRA: {reason}") from None
    halves = parts["a"].keys() ^ parts["b"].keys()
    if halves:
        half = clean(min(halves))
        raise ConfigError(f"adapter file {path} has one half of the pair '{half}' only")
    pairs = {}
    for name, a_rn in parts["a"].items():
        b_mr = parts["b"][name]
        if a_rn.ndim != 2 or b_mr.ndim != 2 or not b_mr.shape[1] == a_rn.shape[0] > 0:
            raise ConfigError(
                f"adapter pair '{clean(name)}' in {path} has shapes B {b_mr.shape} and "
                f"A {a_rn.shape}; expected (m, r) and (r, n)"
            )
        pairs[name] = LoraPair(b_mr, a_rn, _scaling(name, len(a_rn), config))
    adapter = Adapter(pairs, parts["tensor"])
    if not adapter.is_finite():
        raise ConfigError(f"adapter file {path} holds NaN or infinite numbers")
    return adapter


def read_peft_config(folder: Path) -> dict[str, Any]:
    """Read and check ``adapter_config.json``.

    Raises
    ------
    ConfigError
        If it is missing or malformed, or describes something other than plain LoRA.
    """
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"adapter settings not found: {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"adapter settings {path} cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ConfigError(f"{path} does not describe a LoRA adapter")
    unsupported = [key for key in ("use_dora", "lora_bias", "use_qalora") if config.get(key)]
    if config.get("bias", "none") != "none":
        unsupported.append("bias")
    if unsupported:
        raise ConfigError(f"{path} uses {', '.join(unsupported)}; only plain LoRA is supported")
    return config


def _entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    # safetensors.numpy cannot read bf16, so its raw entries are read
    return deserialize(path.read_bytes())  # type: ignore[no-untyped-call, no-any-return]


def _scaling(name: str, rank: int, config: Mapping[str, Any]) -> float:
    """PEFT: alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA; alpha may differ by layer."""
    alpha, patterns = config.get("lora_alpha"), config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or not all(map(_LAYER.fullmatch, patterns)):
        raise ConfigError(
            "alpha_pattern of the adapter settings must map names of layers to alphas"
        )
    for layer, value in patterns.items():
        if name == layer.removeprefix("^") or name.endswith(f".{layer}"):
            alpha = value
            break
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= 1e6:
        raise ConfigError(
            f"adapter pair '{clean(name)}': lora_alpha must be a number in (0, 1e6], "
            f"got {shown(alpha)}"
        )
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _contiguous(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype="<f4")


def _fp32(entry: Mapping[str, Any]) -> NDArray[np.float32]:
    shape, data, kind = entry["shape"], entry["data"], entry["dtype"]
    if kind == "BF16":  # numpy has no bf16: its bits are the upper half of an fp32
        bits = np.frombuffer(data, dtype="<u2").astype("<u4") << 16
        return bits.view("<f4").reshape(shape)
    formats = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
    if kind not in formats:
        raise ValueError(f"an array of type {kind}")
    return np.frombuffer(data, dtype=formats[kind]).reshape(shape).astype(np.float32)
