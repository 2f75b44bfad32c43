"""What a site of `pflalign` keeps between its rounds, as named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from client_app.flat import FlatArrays
from fedapp.adapter import Adapter, Array
from fedapp.errors import SiteStateError
from fedapp.state import State

Arrays = Mapping[str, Array]
_VECTORS = ("delta", "second_moment", "factor")


@dataclass(frozen=True)
class PflAlignState:
    """Delta, v and P by name of array, and the steps behind v; empty where nothing was kept."""

    delta: Arrays = field(default_factory=dict)
    second_moment: Arrays = field(default_factory=dict)
    factor: Arrays = field(default_factory=dict)
    steps: int = 0

    def to_state(self) -> State:
        """Return what is not empty, in the form in which states are stored."""
        vectors = {name: getattr(self, name) for name in _VECTORS}
        state: State = {name: Adapter({}, arrays) for name, arrays in vectors.items() if arrays}
        return {**state, "steps": self.steps} if state else {}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], flat: FlatArrays) -> PflAlignState:
        """Rebuild it from `to_state`.

        Raises
        ------
        SiteStateError
            If it is not of exactly the arrays that are trained.
        """
        expected = {name: tuple(array.shape) for name, array in flat.named}
        vectors: dict[str, Arrays] = {}
        for vector in _VECTORS:
            kept = state.get(vector, Adapter({}))
            arrays = dict(kept.arrays()) if isinstance(kept, Adapter) else {"": kept}
            shapes = {name: getattr(array, "shape", None) for name, array in arrays.items()}
            if vector in state and shapes != expected:
                odd = sorted(n for n in shapes | expected if shapes.get(n) != expected.get(n))
                raise SiteStateError(
                    f"'{vector}' of what pflalign has kept at this site has shape "
                    f"{shapes.get(odd[0])} for '{odd[0]}', expected {expected.get(odd[0])}; remove "
                    "the run's folder below the site's state folder, and it begins with no offset"
                )
            vectors[vector] = arrays
        steps = state.get("steps")
        if type(steps) is not int or steps < 0:
            raise SiteStateError(
                f"'steps' of what pflalign has kept at this site is {steps!r:.40}, expected a "
                "number of steps; remove the run's folder below the site's state folder, and it "
                "begins with no offset"
            )
        return cls(**vectors, steps=steps)
