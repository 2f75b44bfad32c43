from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from fedapp.cli import toml

SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)


@given(SCALARS)
def test_a_literal_reads_back_as_the_same_value_and_type(value: bool | int | float | str) -> None:
    read = tomllib.loads(toml.lines({"section.some-key": value}))["section"]["some-key"]
    assert read == value
    assert type(read) is type(value)
