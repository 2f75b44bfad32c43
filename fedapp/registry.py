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
    personal: str = ""
    """What is each site's own and stays there, so that there is no one model; empty: nothing."""
    moves_basis: bool = False
    """Whether the pairs get other factors every round; both halves say so too."""
    products: bool = False
    """Whether it is a method for LoRA pairs, though it does not move their basis."""
    bases: bool = False
    """Whether every round begins with bases that the sites propose."""
    offset: str = ""
    """What each site adds to the one model, and keeps; empty: nothing."""
    peer_rule: str = ""
    """Import path of the rule by which a site mixes its neighbours' models, see
    `fedapp.peer_rules`; empty: a coordinator merges."""

    @property
    def on_pairs(self) -> bool:
        """Whether it needs LoRA pairs, so that it cannot train all weights instead."""
        return self.moves_basis or self.products


_PEER_SERVER, _PEER_CLIENT = (
    "server_app.strategies.peer_to_peer:PeerToPeer",
    "client_app.methods.peer_model:PeerModel",
)

METHODS: dict[str, Method] = {
    "fedavg": Method(
        "server_app.strategies.fedavg:FedAvg",
        "client_app.methods.fedavg:FedAvg",
        "average every array, the LoRA factors A and B separately (FedIT; stock Flower's FedAvg)",
    ),
    "svd": Method(
        "server_app.strategies.svd:Svd",
        "client_app.methods.svd:Svd",
        "sum the products B A exactly and truncate by SVD (FlexLoRA)",
        moves_basis=True,
    ),
    "fedsvd": Method(
        "server_app.strategies.fedsvd:FedSvd",
        "client_app.methods.fedsvd:FedSvd",
        "train B only; re-orthonormalise A by SVD every round (FedSVD)",
        moves_basis=True,
    ),
    "subspace-reg": Method(
        "server_app.strategies.subspace_reg:SubspaceReg",
        "client_app.methods.subspace_reg:SubspaceReg",
        "keep each product near the shared one; merge by SVD with an orthonormal B",
        moves_basis=True,
    ),
    "dysco": Method(
        "server_app.strategies.dysco:Dysco",
        "client_app.methods.dysco:Dysco",
        "every round a fresh B, in directions that the others do not use, folded into the base",
        moves_basis=True,
        bases=True,
    ),
    "random-boost": Method(
        "server_app.strategies.random_boost:RandomBoost",
        "client_app.methods.dysco:Dysco",
        "every round a fresh B on a random A for all, folded into the base (control of dysco)",
        moves_basis=True,
    ),
    "flora": Method(
        "server_app.strategies.flora:Flora",
        "client_app.methods.flora:Flora",
        "every round a fresh pair; the sites' pairs are stacked and folded into the base (FLoRA)",
        moves_basis=True,
    ),
    "ffa-lora": Method(
        "server_app.strategies.ffa_lora:FfaLora",
        "client_app.methods.ffa_lora:FfaLora",
        "train and average B on one random A that never changes (FFA-LoRA)",
        products=True,
    ),
    "fedsa-lora": Method(
        "server_app.strategies.fedsa_lora:FedSaLora",
        "client_app.methods.fedsa_lora:FedSaLora",
        "train A and B, average A; every site keeps its own B and head (FedSA-LoRA)",
        personal="B of every pair and the heads",
        products=True,
    ),
    "ditto": Method(
        "server_app.strategies.fedavg:FedAvg",
        "client_app.methods.ditto:Ditto",
        "fedavg, and beside it every site trains a model of its own near the shared one (Ditto)",
    ),
    "pflalign": Method(
        "server_app.strategies.pflalign:PflAlign",
        "client_app.methods.pflalign:PflAlign",
        "sites weigh gradients by how sure they are, and begin at offsets of their own (pFLAlign)",
        offset="an offset to every number of it",
    ),
    "lightyear": Method(
        "server_app.strategies.peer_to_peer:PeerToPeer",
        "client_app.methods.peer_model:PeerModel",
        "no shared model: every site mixes its own with those of the neighbours that it believes",
        personal="all numbers of the adapter",
        peer_rule="fedapp.peer_rules.lightyear:Lightyear",
    ),
    "gossip-average": Method(
        _PEER_SERVER,
        _PEER_CLIENT,
        "no shared model: every site takes the mean of its own and all neighbours'",
        personal="all numbers of the adapter",
        peer_rule="fedapp.peer_rules.average:Average",
    ),
    "balance": Method(
        _PEER_SERVER,
        _PEER_CLIENT,
        "no shared model: mix with neighbours within a radius that shrinks (BALANCE)",
        personal="all numbers of the adapter",
        peer_rule="fedapp.peer_rules.balance:Balance",
    ),
    "clipping": Method(
        _PEER_SERVER,
        _PEER_CLIENT,
        "no shared model: mix with all, each cut to a distance (self-centred clipping)",
        personal="all numbers of the adapter",
        peer_rule="fedapp.peer_rules.clipping:Clipping",
    ),
    "ubar": Method(
        _PEER_SERVER,
        _PEER_CLIENT,
        "no shared model: mix with the nearest that are no worse on own records (UBAR)",
        personal="all numbers of the adapter",
        peer_rule="fedapp.peer_rules.ubar:Ubar",
    ),
    "alone": Method(
        _PEER_SERVER,
        _PEER_CLIENT,
        "no shared model and no mixing: what each site learns by itself",
        personal="all numbers of the adapter",
        peer_rule="fedapp.peer_rules.alone:Alone",
    ),
    "oracle": Method(
        _PEER_SERVER,
        _PEER_CLIENT,
        "no shared model: the mean of those that faults.sites does not name",
        personal="all numbers of the adapter",
        peer_rule="fedapp.peer_rules.oracle:Oracle",
    ),
    "krum": Method(
        "server_app.strategies.krum:Krum",
        "client_app.methods.fedavg:FedAvg",
        "take the one update that is nearest to its nearest (Krum)",
    ),
    "multi-krum": Method(
        "server_app.strategies.krum:MultiKrum",
        "client_app.methods.fedavg:FedAvg",
        "average the updates that are nearest to their nearest (Multi-Krum)",
    ),
    "trimmed-mean": Method(
        "server_app.strategies.coordinate_wise:TrimmedMean",
        "client_app.methods.fedavg:FedAvg",
        "average every number without its largest and smallest",
    ),
    "median": Method(
        "server_app.strategies.coordinate_wise:Median",
        "client_app.methods.fedavg:FedAvg",
        "take the median of every number",
    ),
    "norm-clip": Method(
        "server_app.strategies.bounded:NormClip",
        "client_app.methods.fedavg:FedAvg",
        "average updates that are cut to one length",
    ),
    "fltrust": Method(
        "server_app.strategies.bounded:FlTrust",
        "client_app.methods.fedavg:FedAvg",
        "weigh updates by how far they point where a trusted site's does (FLTrust)",
    ),
}


@dataclass(frozen=True)
class Algorithm:
    """Import paths (``module:Class``) of the two halves of an algorithm and its summary."""

    server: str
    client: str
    summary: str
    fixed_basis: bool = False
    """Whether a number of a factor must mean the same from round to round."""


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
    "fedyogi": Algorithm(
        "server_app.algorithms.fedyogi:FedYogi",
        _CLIENT,
        "an adaptive step of the coordinator for every number",
        fixed_basis=True,
    ),
    "fedsam": Algorithm(
        _SERVER,
        "client_app.algorithms.fedsam:FedSam",
        "sites step by the gradient of a point uphill, towards flat minima",
    ),
}


def load_half(reference: str) -> Any:
    """Import ``module:Class`` and return the class."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
