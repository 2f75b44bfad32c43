"""The settings of LIGHTYEAR."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from fedapp.config_section import Section, setting
from fedapp.errors import ConfigError

_PAPER: dict[str, Any] = {
    "agreement": "logits",
    "kernel_gate": "fixed",
    "kernel": 0.6,
    "prediction": -1.0,
    "distance": 0.0,
    "head_distance": 0.0,
    "gamma": 0.95,
    "floor": 0.0,
    "self_in_mean": False,
    "mix_on": "factors",
}
"""What arXiv 2608.12108 says, literally; of the numbers that travel."""


class LightyearSection(Section):
    """Method lightyear (arXiv 2608.12108)."""

    preset: Literal["default", "paper"] = setting(
        "default", "paper: the literal method, which fixes all of the following but nulls"
    )
    agreement: Literal["logits", "softmax-trace", "softmax-full", "v1"] = setting(
        "logits",
        "kernel of the agreement; v1: accuracy, calibration and sharpness, the authors' earlier "
        "score (arXiv 2508.05224)",
    )
    kernel_gate: Literal["auto", "fixed", "calibrated", "off"] = setting(
        "auto",
        "what the least agreement is of: the score itself, or how far it is above that of models "
        "known to be useless; auto: calibrated for a model that is trained whole, off for LoRA",
    )
    kernel: float = setting(0.4, "least agreement of a neighbour that is accepted", ge=-1, le=1)
    nulls: int = setting(
        5, "useless models by which a site calibrates its scores every round", ge=1, le=100
    )
    prediction: float = setting(
        -2.0,
        "least agreement of the predictions, without labels; -1: no such gate, -2: none for LoRA "
        "beside a head that is trained, else 0.2",
        ge=-2,
        le=1,
    )
    distance: float = setting(
        -1.0,
        "largest distance of a neighbour's model, in norms of the own one; 0: no such gate, -1: "
        "0.9 for a model that is trained whole, 3 for LoRA",
        ge=-1,
        le=1e6,
    )
    head_distance: float = setting(
        -1.0,
        "the same of what is trained whole alone, beside LoRA the head; 0: no such gate, -1: 1.1 "
        "for LoRA beside a head that is trained, else none",
        ge=-1,
        le=1e6,
    )
    gamma: float = setting(0.95, "a round t moves by gamma^t towards the mean", gt=0, le=1)
    floor: float = setting(0.5, "least such step", ge=0, le=1)
    self_in_mean: bool = setting(True, "whether the own model is in the mean")
    mix_on: Literal["products", "factors"] = setting(
        "products",
        "what is averaged of a LoRA pair: B A, cut to the rank, or A and B by themselves",
    )

    @field_validator("prediction")
    @classmethod
    def _prediction(cls, value: float) -> float:
        """Refuse what lies between "by what is trained" and "no gate"."""
        if -2 < value < -1:
            raise PydanticCustomError(
                "prediction", "expected -2 (by what is trained), -1 (no gate), or more up to 1"
            )
        return value

    @field_validator("distance", "head_distance")
    @classmethod
    def _distance(cls, value: float) -> float:
        """Refuse what lies between "by what is trained" and "no gate"."""
        if -1 < value < 0:
            raise PydanticCustomError(
                "distance", "expected -1 (by what is trained), 0 (no gate), or more"
            )
        return value

    def effective(self) -> LightyearSection:
        """Return what counts: these settings, or the paper's.

        Raises
        ------
        ConfigError
            If the preset fixes a setting that has another value than its default.
        """
        if self.preset == "default":
            return self
        for name in _PAPER:
            value, default = getattr(self, name), type(self).model_fields[name].default
            if value not in (default, _PAPER[name]):
                key = name.replace("_", "-")
                raise ConfigError(
                    f"lightyear.preset paper fixes lightyear.{key} at {_PAPER[name]}, got {value}; "
                    "leave it out, or set lightyear.preset to default"
                )
        return self.model_copy(update=_PAPER)
