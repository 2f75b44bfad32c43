"""Agreement of two models' outputs on the same records (numpy, pure).

The kernel of `fedapp.ntk` sees features alone; these see the head. `prediction_agreement` needs no
label. `profile` and `profile_agreement` are the earlier score of the authors of LIGHTYEAR.

References
----------
Don't reach for the stars, arXiv 2508.05224.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]
Double = NDArray[np.float64]

CALIBRATION_BINS = 15
MIN_ROWS = 3
"""Centred, two rows are opposite: any two models would agree perfectly there, or not at all."""


def softmax(logits_nc: Matrix) -> Double:
    """Return the probabilities of every row, in fp64."""
    logits = np.asarray(logits_nc, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # what is infinite becomes NaN, which no gate passes
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def probabilities(logits_nc: Matrix) -> Double:
    """Return the probabilities of every row; one column is the logit of a sigmoid."""
    if logits_nc.shape[1] > 1:
        return softmax(logits_nc)
    return softmax(np.concatenate([np.zeros_like(logits_nc), logits_nc], axis=1))[:, 1:]


def prediction_agreement(probabilities_i_nc: Matrix, probabilities_j_nc: Matrix) -> float:
    """Return the cosine between two matrices of probabilities, each column centred.

    Centring takes out how often each class is predicted, so that a model with one answer for all
    records agrees with nobody.

    Parameters
    ----------
    probabilities_i_nc, probabilities_j_nc : ndarray, shape (n, C)
        Of the same rows in one order; one column is that of a sigmoid.

    Returns
    -------
    float
        In [-1, 1]: about 0 for a random head, below for a flipped one. 0 where a matrix is not
        finite, has fewer than `MIN_ROWS` rows, or does not vary from row to row (to 1e-12 of its
        norm).
    """
    if probabilities_i_nc.ndim != 2 or probabilities_i_nc.shape != probabilities_j_nc.shape:
        raise ValueError(
            "expected two matrices (n, C) of one shape, got "
            f"{probabilities_i_nc.shape} and {probabilities_j_nc.shape}"
        )
    i_nc, j_nc = _unit(probabilities_i_nc), _unit(probabilities_j_nc)
    return float(np.clip(np.sum(i_nc * j_nc), -1.0, 1.0))


@dataclass(frozen=True)
class Profile:
    """How a model does on labelled records: three numbers in [0, 1].

    Attributes
    ----------
    accuracy : float
    calibration_error : float
        Expected calibration error.
    sharpness : float
        Mean probability of the predicted class.
    """

    accuracy: float
    calibration_error: float
    sharpness: float


def profile(
    probabilities_nc: Matrix, labels_n: NDArray[np.integer[Any]], bins: int = CALIBRATION_BINS
) -> Profile:
    """Return a model's profile on labelled records.

    ``ECE = sum_b (n_b / n) |accuracy_b - confidence_b|`` over bins ``(b/B, (b+1)/B]`` of the
    probability of the predicted class. All three are NaN where a probability is not finite.

    Raises
    ------
    ValueError
        If there is no record or the numbers of rows and labels differ.

    Notes
    -----
    The authors' code takes the largest *output* of the model as its confidence, which is a
    probability only if the model ends in a softmax. Here it is the probability always.
    """
    rows = len(probabilities_nc)
    if probabilities_nc.ndim != 2 or rows == 0 or labels_n.shape != (rows,):
        raise ValueError(
            "expected probabilities (n, C) and labels (n,), n >= 1, got "
            f"{probabilities_nc.shape} and {labels_n.shape}"
        )
    if not np.isfinite(probabilities_nc).all():
        return Profile(float("nan"), float("nan"), float("nan"))
    confidence_n = np.asarray(probabilities_nc.max(axis=1), dtype=np.float64)
    right_n = (probabilities_nc.argmax(axis=1) == labels_n).astype(np.float64)
    bin_n = np.clip(np.ceil(confidence_n * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(bin_n, weights=right_n - confidence_n, minlength=bins)
    return Profile(
        float(right_n.mean()), float(np.abs(gaps).sum() / rows), float(confidence_n.mean())
    )


def profile_agreement(own: Profile, peer: Profile) -> float:
    """Return the mean of ``max(0, 1 - |difference|)`` of accuracy, calibration and sharpness.

    0 for a peer whose profile is not finite.
    """
    differences = np.abs(
        [
            own.accuracy - peer.accuracy,
            own.calibration_error - peer.calibration_error,
            own.sharpness - peer.sharpness,
        ]
    )
    return (
        float(np.mean(np.clip(1 - differences, 0, None))) if np.isfinite(differences).all() else 0.0
    )


def _unit(probabilities_nc: Matrix) -> Double:
    whole = np.asarray(probabilities_nc, dtype=np.float64)
    if len(whole) < MIN_ROWS or not np.isfinite(whole).all():
        return np.zeros_like(whole)
    centred = whole - whole.mean(axis=0)
    norm = np.linalg.norm(centred)
    return centred / norm if norm > 1e-12 * np.linalg.norm(whole) else np.zeros_like(whole)
