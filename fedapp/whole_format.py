"""A model that was trained whole, as the plain safetensors state dict of its parameters; no torch.

``safetensors.torch.load_model(model, path)`` loads it. There are no settings of PEFT beside it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedapp.adapter import Adapter
from fedapp.atomic_folder import write_folder
from fedapp.errors import ConfigError
from fedapp.text import clean

WEIGHTS_FILE = "model.safetensors"
_LONGEST_REASON = 300


def save_whole(model: Adapter, folder: Path, card_text: str) -> None:
    """Write ``model.safetensors`` and the model card atomically.

    Parameters
    ----------
    model : Adapter
        Without pairs.
    folder : Path
        Replaced if it holds a model; any other folder with content is left alone.
    card_text : str
        Content of ``README.md``.

    Raises
    ------
    ConfigError
        If the folder is none or holds something else.
    OSError
        If it cannot be written; what was there before stays.
    """
    if model.pairs:
        raise ValueError("a model that was trained whole has no LoRA pairs")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"{folder} is a link or a file; name a folder that is none yet")
    if folder.exists() and any(folder.iterdir()) and not (folder / WEIGHTS_FILE).is_file():
        raise ConfigError(f"{folder} holds something other than a model; name another folder")
    arrays = {name: np.ascontiguousarray(x, dtype="<f4") for name, x in model.tensors.items()}

    def fill(temporary: Path) -> None:
        save_file(arrays, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
        (temporary / "README.md").write_text(card_text, encoding="utf-8")

    write_folder(folder, fill)


def load_whole(folder: Path) -> Adapter:
    """Read what `save_whole` has written.

    Raises
    ------
    ConfigError
        If the file is missing or damaged, or holds something other than fp32.
    """
    path = folder / WEIGHTS_FILE
    try:
        arrays = load_file(path)
    except FileNotFoundError:
        raise ConfigError(f"model file not found: {path}") from None
    except (OSError, SafetensorError) as error:
        reason = clean(str(error), _LONGEST_REASON)
        raise ConfigError(f"model file {path} cannot be read: {reason}") from None
    for name, array in arrays.items():
        if array.dtype != np.float32:
            raise ConfigError(f"array '{clean(name)}' in {path} is {array.dtype}, expected float32")
    return Adapter({}, arrays)
