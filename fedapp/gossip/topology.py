"""Who pulls from whom: full, ring, k-regular and exponential graphs.

Pure, and computed by every node for itself: the same names, degree and seed give the same graph on
every machine and with every version of Python, so that nobody has to send it to anybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, pairwise
from typing import Literal, get_args

from fedapp.errors import ConfigError
from fedapp.text import clean

Topology = Literal["full", "ring", "k-regular", "exponential"]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)
Graph = Mapping[str, tuple[str, ...]]
"""Node -> the nodes that it pulls from, sorted."""

_BATCHES = 10  # of as many exchanges as there are edges; about five an edge mix well


def neighbours(
    topology: Topology, names: Iterable[str], *, degree: int = 4, seed: int = 0
) -> dict[str, tuple[str, ...]]:
    """Return whom each node pulls from.

    Parameters
    ----------
    topology : {"full", "ring", "k-regular", "exponential"}
        ``full``: everybody from everybody. ``ring``: from the two beside in the order of names.
        ``k-regular``: a random connected graph in which everybody has ``degree`` neighbours.
        ``exponential``: from the nodes 1, 2, 4, ... places on, directed, ``ceil(log2 n)`` of them
        (the static exponential graph of Assran et al., arXiv 1811.10792, and of Ying et al., arXiv
        2110.13363). All but the last are symmetric.
    names : iterable of str
        The nodes, in any order.
    degree : int
        Of ``k-regular`` only.
    seed : int
        Of ``k-regular`` only.

    Raises
    ------
    ConfigError
        If a name comes twice, or there is no ``k-regular`` graph of that degree.
    """
    nodes = sorted(names)
    twice = next((a for a, b in pairwise(nodes) if a == b), None)
    if twice is not None:
        raise ConfigError(
            f"two members are called '{clean(twice)}', expected different names; rename one"
        )
    size = len(nodes)
    links: dict[int, set[int]]
    if topology == "full":
        links = {i: set(range(size)) for i in range(size)}
    elif topology == "ring":
        links = {i: {(i - 1) % size, (i + 1) % size} for i in range(size)}
    elif topology == "exponential":
        reach = [2**power for power in range((size - 1).bit_length())]
        links = {i: {(i + step) % size for step in reach} for i in range(size)}
    else:
        links = _regular(size, degree, seed)
    return {nodes[i]: tuple(sorted(nodes[j] for j in sorted(links[i] - {i}))) for i in range(size)}


def pulled_by(graph: Graph, node: str) -> tuple[str, ...]:
    """Return who pulls from ``node``, sorted: its neighbours in a symmetric graph."""
    return tuple(sorted(other for other, sources in graph.items() if node in sources))


def is_connected(graph: Graph) -> bool:
    """Whether what any node publishes can reach every other one."""
    onward: dict[str, list[str]] = {node: [] for node in graph}
    for node, sources in graph.items():
        for source in sources:
            onward[source].append(node)
    first = next(iter(graph), None)
    if first is None:
        return True
    # Strongly connected: everybody is reached from one node, and reaches it.
    return all(
        len(_reached(first, step)) == len(graph) for step in (onward.__getitem__, graph.__getitem__)
    )


def _reached(first: str, step: Callable[[str], Iterable[str]]) -> set[str]:
    seen, waiting = {first}, [first]
    for node in waiting:
        new = [other for other in step(node) if other not in seen]
        seen.update(new)
        waiting += new
    return seen


def _regular(size: int, degree: int, seed: int) -> dict[int, set[int]]:
    """Return a connected graph of equal degrees: Harary's, mixed by exchanges of edge ends.

    An exchange a-b, c-d -> a-d, c-b keeps every degree. A batch of them that would tear the graph
    apart is undone.
    """
    _check_degree(size, degree)
    links = _harary(size, degree)
    draw = _draws(seed)
    edges = sorted((i, j) for i in links for j in links[i] if i < j)
    for _ in range(_BATCHES if degree < size - 1 else 0):
        before = {i: set(others) for i, others in links.items()}, list(edges)
        for _ in range(len(edges)):
            _exchange(links, edges, next(draw) % len(edges), next(draw) % (2 * len(edges)))
        if not is_connected({str(i): tuple(map(str, o)) for i, o in links.items()}):
            links, edges = before
    return links


def _exchange(
    links: dict[int, set[int]], edges: list[tuple[int, int]], first: int, second: int
) -> None:
    (a, b), (c, d) = edges[first], edges[second // 2]
    if second % 2:
        c, d = d, c
    if len({a, b, c, d}) < 4 or d in links[a] or b in links[c]:
        return
    for i, j in ((a, b), (c, d)):
        links[i].discard(j)
        links[j].discard(i)
    for i, j in ((a, d), (c, b)):
        links[i].add(j)
        links[j].add(i)
    edges[first], edges[second // 2] = (a, d), (c, b)


def _harary(size: int, degree: int) -> dict[int, set[int]]:
    """Return the circulant graph with the ``degree`` nearest places, and the opposite if odd."""
    steps = [step for half in range(1, degree // 2 + 1) for step in (half, -half)]
    steps += [size // 2] if degree % 2 else []
    return {i: {(i + step) % size for step in steps} for i in range(size)}


def _check_degree(size: int, degree: int) -> None:
    if size < 2:
        return
    if size * degree % 2:
        raise ConfigError(
            f"no graph of {size} members gives each of them {degree} neighbours, since an odd "
            f"number of members needs an even degree; choose {degree - 1} or {degree + 1}"
        )
    least = min(2, size - 1)
    if not least <= degree < size:
        raise ConfigError(
            f"topology k-regular with {size} members needs a degree from {least} to {size - 1}, "
            f"got {degree}; change the degree, or use topology full"
        )


def _draws(seed: int) -> Iterator[int]:
    """Yield numbers that only a change of SHA-256 could change, unlike those of `random`."""
    for number in count():
        yield int.from_bytes(hashlib.sha256(f"fedapp topology {seed} {number}".encode()).digest())
