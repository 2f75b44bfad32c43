"""A model that was trained whole, on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedapp.adapter import Adapter, LoraPair
from fedapp.errors import ConfigError
from fedapp.how_to_load import loading_code
from fedapp.tasks import TASKS
from fedapp.whole_format import load_whole, save_whole

MODEL = Adapter(
    {},
    {
        "body.0.weight": np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3),
        "body.0.bias": np.zeros(2, np.float32),
    },
)


def test_what_was_saved_is_read_to_the_bit(tmp_path: Path) -> None:
    save_whole(MODEL, tmp_path / "adapter", "# card\n")
    save_whole(MODEL, tmp_path / "adapter", "# another\n")

    assert load_whole(tmp_path / "adapter").digest() == MODEL.digest()
    assert (tmp_path / "adapter" / "README.md").read_text() == "# another\n"


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(ConfigError, match="holds something other than a model"):
        save_whole(MODEL, tmp_path, "")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is a link or a file"):
        save_whole(MODEL, tmp_path / "link", "")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["link", "notes.txt"]


def test_pairs_have_no_place_in_it(tmp_path: Path) -> None:
    pair = LoraPair(np.zeros((3, 1), np.float32), np.zeros((1, 3), np.float32), 1.0)

    with pytest.raises(ValueError, match="has no LoRA pairs"):
        save_whole(Adapter({"x": pair}), tmp_path / "adapter", "")


def test_bad_files_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model file not found"):
        load_whole(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_whole(tmp_path)
    save_file({"a": np.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"array 'a' in .* is float64, expected float32"):
        load_whole(tmp_path)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("task", TASKS)
def test_the_lines_that_load_it_are_python(task: str, whole: bool) -> None:
    told = {"task_type": "CAUSAL_LM"}

    code = loading_code(TASKS[task], told, whole=whole, base="'org/m'", outputs=0, folder="adapter")

    compile(code, "card", "exec")
    assert ("load_model(model, " in code) is whole
    assert ("PeftModel" in code) is not whole
    assert ("client_app.image_nets" in code) is task.startswith("image")
