"""The Python that loads what a run has exported, for its card, its report and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedapp.tasks import TaskInfo
from fedapp.whole_format import WEIGHTS_FILE


def loading_code(
    task: TaskInfo,
    told: Mapping[str, Any],
    *,
    whole: bool,
    base: str,
    outputs: int,
    folder: str,
) -> str:
    """Return lines of Python that end with the trained model in ``model``.

    Parameters
    ----------
    task : TaskInfo
    told : mapping
        ``peft_config`` of a site's description: ``task_type`` decides the class of transformers.
    whole : bool
        Whether ``model.trainable`` is all.
    base : str
        The base model as Python source, such as a literal.
    outputs : int
        Number of labels or classes; 0: the task has none.
    folder : str
        Where the exported files are.
    """
    if task.on_images:
        first = ["from client_app.image_nets import load_net"]
        load = f"load_net({base}, outputs={outputs})"
    else:
        loader = task.loader(told)
        first = [f"from transformers import {loader}"]
        labels = f", num_labels={outputs}" if outputs else ""
        load = f"{loader}.from_pretrained({base}{labels})"
    if whole:
        imports = sorted([*first, "from safetensors.torch import load_model"])
        then = [f"model = {load}", f'load_model(model, "{folder}/{WEIGHTS_FILE}")']
    else:
        imports = sorted([*first, "from peft import PeftModel"])
        then = [f"base = {load}", f'model = PeftModel.from_pretrained(base, "{folder}")']
    return "\n".join([*imports, "", *then])
