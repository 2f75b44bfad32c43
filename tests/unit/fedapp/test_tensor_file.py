"""What is written piece by piece is what the safetensors library reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load

from fedapp.tensor_file import safetensors_pieces

TYPES = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")
ORDERS = ("<", ">")


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, np.ndarray]:
    names = draw(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=5))
    names = [name for name in names if name != "__metadata__"]
    shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    return {
        name: draw(
            arrays.arrays(draw(st.sampled_from(ORDERS)) + draw(st.sampled_from(TYPES)), shapes)
        )
        for name in names
    }


@given(tensors())
def test_the_library_reads_the_same_tensors(given: dict[str, np.ndarray]) -> None:
    read = load(b"".join(bytes(piece) for piece in safetensors_pieces(given)))

    assert set(read) == set(given)
    for name, array in given.items():
        assert read[name].dtype == array.dtype.newbyteorder("=")
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.astype(read[name].dtype).tobytes()


def test_nothing_is_copied() -> None:
    matrix, number = np.ones((3, 4), np.float32), np.array(7, np.int64)

    _, *pieces = safetensors_pieces({"matrix": matrix, "number": number})

    assert np.shares_memory(np.asarray(pieces[0]), number)
    assert np.shares_memory(np.asarray(pieces[1]), matrix)


def test_a_view_is_written_as_it_reads() -> None:
    columns = np.arange(12, dtype=np.float32).reshape(3, 4).T

    read = load(b"".join(bytes(piece) for piece in safetensors_pieces({"x": columns})))

    assert np.array_equal(read["x"], columns)


def test_every_tensor_is_aligned() -> None:
    header, *pieces = safetensors_pieces(
        {"a": np.ones(1, np.int8), "b": np.ones(3, np.float32), "c": np.ones(1, np.float64)}
    )

    assert len(header) % 8 == 0
    assert [piece.nbytes for piece in pieces] == [8, 12, 1]  # type: ignore[union-attr]


def test_numbers_without_a_word_are_refused() -> None:
    with pytest.raises(ValueError, match="tensor 'x' has numbers of the type complex128"):
        safetensors_pieces({"x": np.ones(2, np.complex128)})
