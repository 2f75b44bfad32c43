"""The methods and the algorithms: one line each, naming the server half and the client half.

A method says what a site trains and how updates become one model; an algorithm, of those that
federated optimisation has, how the updates are weighed and where the model goes. They compose.

The halves are named by import path and loaded on demand, so that neither side imports the other.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Method:
    """Import paths (``module:Class``) of the two halves of a method and its one-line summary."""

    server: str
    client: str
    summary: str


METHODS: dict[str, Method] = {
    "fedavg": Method(
        "server_app.strategies.fedavg:FedAvg",
        "client_app.methods.fedavg:FedAvg",
        "average the LoRA factors A and B separately (FedIT; stock Flower's FedAvg)",
    ),
    "svd": Method(
        "server_app.strategies.svd:Svd",
        "client_app.methods.svd:Svd",
        "sum the products B A exactly and truncate by SVD (FlexLoRA)",
    ),
    "fedsvd": Method(
        "server_app.strategies.fedsvd:FedSvd",
        "client_app.methods.fedsvd:FedSvd",
        "train B only; re-orthonormalise A by SVD every round (FedSVD)",
    ),
    "subspace-reg": Method(
        "server_app.strategies.subspace_reg:SubspaceReg",
        "client_app.methods.subspace_reg:SubspaceReg",
        "keep each product near the shared one; merge by SVD with an orthonormal B",
    ),
}


@dataclass(frozen=True)
class Algorithm:
    """Import paths (``module:Class``) of the two halves of an algorithm and its summary."""

    server: str
    client: str
    summary: str


_SERVER, _CLIENT = (
    "server_app.algorithms.base:ServerAlgorithm",
    "client_app.algorithms.base:LocalAlgorithm",
)

ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": Algorithm(_SERVER, _CLIENT, "the merged model becomes the next one"),
    "fedavgm": Algorithm(
        "server_app.algorithms.fedavgm:FedAvgM",
        _CLIENT,
        "momentum of the coordinator on what a round adds",
    ),
    "fedprox": Algorithm(
        _SERVER,
        "client_app.algorithms.fedprox:FedProx",
        "sites are pulled towards what they received",
    ),
    "scaffold": Algorithm(
        "server_app.algorithms.scaffold:Scaffold",
        "client_app.algorithms.scaffold:Scaffold",
        "control variates correct the sites' drift",
    ),
    "fednova": Algorithm(
        "server_app.algorithms.fednova:FedNova",
        "client_app.algorithms.fednova:FedNova",
        "updates are normalised by the steps that they took",
    ),
}


def load_half(reference: str) -> Any:
    """Import ``module:Class`` and return the class."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
