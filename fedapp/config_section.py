"""What every section of the settings is made of: frozen, and strict about kinds."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError


def split(value: object) -> object:
    """Take a list as it is written in one string, with commas between its names."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(split)]


def setting(default: Any, description: str, unit: str = "", **bounds: Any) -> Any:
    """Declare one setting with its description and unit."""
    return Field(default, description=description, json_schema_extra={"unit": unit}, **bounds)


class Section(BaseModel):
    """Some settings that belong together; unknown names are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
        populate_by_name=True,
        protected_namespaces=(),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_kinds(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what pydantic would turn into something else in silence: true into 1, 1 into true.

        A NUL can be in no path, and in no text that somebody meant; half of a surrogate pair (an
        argument of the command line that is not UTF-8 has them) can be written to no file.
        """
        kind = cls.model_fields[str(info.field_name)].annotation
        if kind in (int, float) and isinstance(value, bool):
            raise PydanticCustomError("number", "expected a number")
        if kind is bool and isinstance(value, int | float) and not isinstance(value, bool):
            raise PydanticCustomError("boolean", "expected true or false")
        if isinstance(value, str) and "\0" in value:
            raise PydanticCustomError("text", "expected text without a NUL character")
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
            raise PydanticCustomError("text", "expected text that is Unicode")
        return value
