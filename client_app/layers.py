"""The last layers of a model among what is trained whole, found by the order of its modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedapp.attacks import HiddenLayer

if TYPE_CHECKING:
    from client_app.models import ResidentModel

Shapes = Iterable[tuple[str, tuple[int, ...]]]


def trained_shapes(resident: ResidentModel) -> Shapes:
    """Yield name and shape of the tensors that are trained whole, in the order of the modules."""
    names = {id(tensor): name for name, tensor in resident.parameters.tensors.items()}
    for parameter in resident.model.parameters():
        if id(parameter) in names:
            yield names[id(parameter)], tuple(parameter.shape)


def last_layers(shapes: Shapes) -> tuple[tuple[str, ...], HiddenLayer | None]:
    """Return the tensors of the last layer, and the layer before it if it feeds it alone.

    A layer is a module with a weight of two axes or more; what stands between the two, such as a
    normalisation, belongs to the layer before.

    Parameters
    ----------
    shapes : iterable of (str, tuple of int)
        Tensors in the order in which data passes through their modules.

    Returns
    -------
    head : tuple of str
        Empty if no layer is trained whole.
    hidden : HiddenLayer or None
        None where the last layer's columns are no multiple of the other's rows.
    """
    modules: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, shape in shapes:
        modules.setdefault(name.rpartition(".")[0], []).append((name, shape))
    parts = list(modules.values())
    layers = [i for i, part in enumerate(parts) if any(len(shape) > 1 for _, shape in part)]
    if not layers:
        return (), None
    last = parts[layers[-1]]
    head = tuple(name for name, _ in last)
    if len(layers) < 2:
        return head, None
    before = [each for part in parts[layers[-2] : layers[-1]] for each in part]
    width = next(shape[0] for _, shape in before if len(shape) > 1)
    read_by = tuple(name for name, shape in last if len(shape) > 1)
    columns = {shape[1] for _, shape in last if len(shape) > 1}
    rows = {shape[0] for _, shape in before}
    if rows != {width} or any(count % width for count in columns):
        return head, None
    return head, HiddenLayer(tuple(name for name, _ in before), read_by)
