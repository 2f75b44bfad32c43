"""One thread for the linear algebra of merges and bases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


@contextmanager
def single_thread() -> Iterator[None]:
    """Let numpy's BLAS and LAPACK compute with one thread for a while.

    The matrices of a merge are small: many threads gain nothing, and where the cores are busy
    already, as in a simulation, they wait for one another at every call (K = 64 on 2 cores: 8 s
    instead of 0.3 s). A sum also depends on its number of threads in the last bit, so that a run
    that is resumed on a machine with other cores would differ.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield
