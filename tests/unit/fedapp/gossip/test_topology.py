"""Topologies: properties that any graph of the kind has, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.errors import ConfigError
from fedapp.gossip.topology import TOPOLOGIES, Graph, Topology, is_connected, neighbours, pulled_by

SIZES = st.integers(1, 40)
NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=30, unique=True)


def names(size: int) -> list[str]:
    return [f"site {number}" for number in range(size)]


def matrix(graph: Graph) -> np.ndarray:
    """``m[i, j]`` = 1 if i pulls from j: the oracle works on this alone."""
    order = {name: place for place, name in enumerate(sorted(graph))}
    m = np.zeros((len(order), len(order)), dtype=int)
    for node, sources in graph.items():
        for source in sources:
            m[order[node], order[source]] += 1
    return m


def reaches_everybody(m: np.ndarray) -> bool:
    """Connected both ways, by powers of the matrix."""
    within = np.eye(len(m), dtype=int) + m
    for _ in range(max(1, math.ceil(math.log2(max(len(m), 2))))):
        within = (within @ within > 0).astype(int)
    return bool(within.all())


@st.composite
def regular(draw: st.DrawFn) -> tuple[int, int, int]:
    """Return size, degree and seed of a graph that exists."""
    size = draw(st.integers(3, 30))
    degree = draw(st.integers(2, size - 1).filter(lambda degree: size * degree % 2 == 0))
    return size, degree, draw(st.integers(0, 5))


@given(names=NAMES, topology=st.sampled_from([t for t in TOPOLOGIES if t != "k-regular"]))
def test_no_loop_no_double_edge_and_connected(names: list[str], topology: Topology) -> None:
    graph = neighbours(topology, names)

    m = matrix(graph)
    assert set(graph) == set(names)
    assert m.max(initial=0) <= 1
    assert np.trace(m) == 0
    assert reaches_everybody(m)
    assert all(sources == tuple(sorted(sources)) for sources in graph.values())


@given(SIZES)
def test_full_is_everybody_else(size: int) -> None:
    assert (matrix(neighbours("full", names(size))) == 1 - np.eye(size)).all()


@given(SIZES)
def test_ring_is_symmetric_with_two_neighbours(size: int) -> None:
    m = matrix(neighbours("ring", names(size)))

    assert (m == m.T).all()
    assert (m.sum(1) == min(2, size - 1)).all()


@given(SIZES)
def test_exponential_pulls_from_a_logarithm_of_nodes_and_spreads_in_as_many_steps(
    size: int,
) -> None:
    m = matrix(neighbours("exponential", names(size)))

    steps = math.ceil(math.log2(size))
    assert (m.sum(0) == steps).all()
    assert (m.sum(1) == steps).all()
    after = np.linalg.matrix_power(np.eye(size, dtype=int) + m, max(steps, 1))
    assert (after > 0).all()


@settings(max_examples=60)
@given(regular())
def test_k_regular_is_symmetric_connected_and_of_equal_degree(case: tuple[int, int, int]) -> None:
    size, degree, seed = case

    m = matrix(neighbours("k-regular", names(size), degree=degree, seed=seed))

    assert m.max() == 1
    assert np.trace(m) == 0
    assert (m == m.T).all()
    assert (m.sum(1) == degree).all()
    assert reaches_everybody(m)


@given(regular(), st.randoms(use_true_random=False))
def test_k_regular_depends_on_the_set_of_names_and_the_seed_alone(
    case: tuple[int, int, int], random: object
) -> None:
    size, degree, seed = case
    ordered = names(size)
    shuffled = list(ordered)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert neighbours("k-regular", shuffled, degree=degree, seed=seed) == neighbours(
        "k-regular", ordered, degree=degree, seed=seed
    )


def test_the_seed_chooses_the_graph() -> None:
    graphs = [neighbours("k-regular", names(20), degree=4, seed=seed) for seed in range(4)]

    assert all(graphs[0] != other for other in graphs[1:])


def test_it_is_the_same_graph_on_every_machine() -> None:
    """Frozen: nodes of two versions of fedapp must not disagree about who their neighbours are."""
    graph = neighbours("k-regular", names(8), degree=3, seed=7)

    assert graph["site 0"] == ("site 1", "site 2", "site 6")


@pytest.mark.parametrize(("size", "degree"), [(64, 4), (64, 6), (101, 4)])
def test_k_regular_spreads_much_faster_than_a_lattice(size: int, degree: int) -> None:
    """A random regular graph is an expander: |lambda_2| near 2 sqrt(k - 1) (Friedman)."""
    m = matrix(neighbours("k-regular", names(size), degree=degree, seed=3))
    second = np.sort(np.abs(np.linalg.eigvalsh(m)))[-2]

    lattice = np.sort([
        sum(2 * math.cos(2 * math.pi * step * j / size) for step in range(1, degree // 2 + 1))
        for j in range(size)
    ])[-2]  # fmt: skip
    assert second < 1.1 * 2 * math.sqrt(degree - 1)
    assert degree - second > 3 * (degree - lattice)  # the gap, which is the speed of mixing


def test_who_pulls_from_a_node() -> None:
    graph = neighbours("exponential", names(8))

    assert graph["site 0"] == ("site 1", "site 2", "site 4")
    assert pulled_by(graph, "site 0") == ("site 4", "site 6", "site 7")


@pytest.mark.parametrize("torn", [{"a": (), "b": ()}, {"a": ("b",), "b": ()}])
def test_a_graph_that_does_not_hang_together_is_told(torn: Graph) -> None:
    assert not is_connected(torn)
    assert is_connected({})


@pytest.mark.parametrize(
    ("size", "degree", "words"),
    [
        (5, 3, "an odd number of members needs an even degree; choose 2 or 4"),
        (4, 4, "needs a degree from 2 to 3, got 4"),
        (4, 1, "needs a degree from 2 to 3, got 1"),
        (3, 0, "needs a degree from 2 to 2, got 0"),
    ],
)
def test_a_degree_that_cannot_be_is_refused(size: int, degree: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        neighbours("k-regular", names(size), degree=degree)


def test_two_members_with_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two members are called 'a'"):
        neighbours("full", ["a", "b", "a"])
