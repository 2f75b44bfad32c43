"""Error feedback: what rounding took from a site's last update is added to its next (numpy, pure).

With ``v_t`` the work of round t, C the codec and ``e_0 = 0``, a site sends ``C(v_t + e_{t-1})`` and
keeps ``e_t = v_t + e_{t-1} - C(v_t + e_{t-1})``. What was sent in all is what was meant in all but
for the last ``e_T``: rounding errors do not add up over the rounds.

References
----------
Seide et al., 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
Training of Speech DNNs, Interspeech 2014. Karimireddy et al., Error Feedback Fixes SignSGD and
other Gradient Compression Schemes, ICML 2019, arXiv 1901.09847, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.adapter import Adapter, Array, LoraPair
from fedapp.codec import Codec, Packed, pack
from fedapp.increments import add, difference
from fedapp.state import State

_SMALLEST = 1e-4
"""Singular values below this share of the largest do not count in a change of basis."""


def encode_payloads(
    payloads: Mapping[str, Adapter],
    received: Mapping[str, Adapter],
    codec: Codec,
    kept: Mapping[str, Any] | None,
    *,
    new_basis: bool,
) -> tuple[dict[str, Packed], State]:
    """Encode what a site sends, and return what it must keep until its next update.

    In bf16 and int8 a payload that was received under the same name is sent as the increment.

    Parameters
    ----------
    payloads, received : mapping of str to Adapter
    codec : {"fp32", "bf16", "int8"}
    kept : mapping or None
        What this function returned last time, empty in the beginning; None: no error feedback.
    new_basis : bool
        Whether the pairs received have other factors every round, see `in_new_basis`.
    """
    packed: dict[str, Packed] = {}
    keep: State = {}
    for name, adapter in payloads.items():
        base = received.get(name)
        if codec == "fp32" or base is None:
            packed[name] = pack(adapter, codec)
            continue
        residual, before = (kept or {}).get(f"residual.{name}"), (kept or {}).get(f"sent.{name}")
        if residual is not None and before is not None:
            residual = in_new_basis(residual, before, base)
        sent = encode_increment(adapter, base, residual, codec)
        packed[name] = sent.packed
        if kept is not None:
            keep[f"residual.{name}"] = sent.residual
            if new_basis:
                keep[f"sent.{name}"] = Adapter(sent.adapter.pairs)
    return packed, keep


@dataclass(frozen=True)
class Sent:
    """One payload as it leaves, and what stays.

    Attributes
    ----------
    packed : Packed
        The encoded increment.
    adapter : Adapter
        What the coordinator makes of it: the received adapter plus the decoded increment.
    residual : Adapter
        ``e_t``, what the codec took away.
    """

    packed: Packed
    adapter: Adapter
    residual: Adapter


def encode_increment(
    trained: Adapter, received: Adapter, residual: Adapter | None, codec: Codec
) -> Sent:
    """Encode what training added to ``received``, and the residual of earlier rounds with it.

    ``e_t`` is exact: the decoded number is zero or within a factor of two of the one that was
    meant (Sterbenz), so their difference is an fp32 number.

    Parameters
    ----------
    trained, received : Adapter
        Of one layout.
    residual : Adapter or None
        ``e_{t-1}`` in the basis of ``received``; None: nothing is left from earlier.
    codec : {"bf16", "int8"}
    """
    meant = difference(trained, received)
    if residual is not None:
        meant = add(meant, residual)
    packed = pack(meant, codec)
    decoded = packed.unpack()
    return Sent(packed, add(received, decoded), difference(meant, decoded))


def in_new_basis(residual: Adapter, sent: Adapter, received: Adapter) -> Adapter:
    """Write the pairs of a residual in the factors that were received now.

    A merge by SVD gives every pair new factors, so ``e_B`` and ``e_A`` of the last round name
    other directions than before. What stays the same is what they are worth in the product, to
    first order ``e_B A' + B' e_A`` with the sent pair ``B', A'``. Of that, the received pair B, A
    can hold what lies in the row space of A and in the column space of B:

        e_B <- e_B (A' A^+)        e_A <- (B^+ B') e_A

    Heads keep their coordinates. Cost ``O(r^2 (m + n))`` a pair.

    Parameters
    ----------
    residual : Adapter
        Of the last round in which this site trained.
    sent : Adapter
        What the coordinator made of this site's update then.
    received : Adapter
        The model of this round.
    """
    pairs = {}
    for name, pair in residual.pairs.items():
        old, new = sent.pairs[name], received.pairs[name]
        change_a_rr = old.a_rn @ _inverse(new.a_rn)
        change_b_rr = _inverse(new.b_mr) @ old.b_mr
        b_mr, a_rn = pair.b_mr @ change_a_rr, change_b_rr @ pair.a_rn
        pairs[name] = LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), pair.scaling)
    return Adapter(pairs, residual.tensors)


def _inverse(matrix: Array) -> NDArray[np.float64]:
    inverse: NDArray[np.float64] = np.linalg.pinv(matrix.astype(np.float64), rcond=_SMALLEST)
    return inverse
