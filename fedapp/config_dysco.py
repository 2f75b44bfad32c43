"""The settings of Dysco, and of the two baselines that fold as it does."""

from __future__ import annotations

from typing import Literal

from fedapp.config_section import Section, setting


class DyscoSection(Section):
    """Method dysco (arXiv 2607.14367); the last three also of random-boost and flora."""

    basis: Literal["rotated", "eigh"] = setting(
        "rotated",
        "directions a site proposes: drawn anew every round among those it does not use, or the "
        "bottom eigenvectors as the paper says",
    )
    energy: float = setting(
        0.01, "largest share of the activations' energy in what counts as not used", ge=0, lt=1
    )
    tokens: int = setting(
        1024,
        "tokens that are looked at, of a site's validation records first, then of its training "
        "records",
        "tokens",
        ge=1,
        le=10**7,
    )
    rows: int = setting(
        0,
        "directions that a site proposes at every layer, at least lora.rank; 0: lora.rank",
        ge=0,
        le=65536,
    )
    merge_scale: Literal["mean", "sum"] = setting(
        "mean", "weights of the sites' products: their shares of the examples, or 1 as in the paper"
    )
    folded_rank: int = setting(
        128,
        "largest rank of what earlier rounds have learned; beyond, it is truncated by SVD, and the "
        "error is reported; 0: no limit",
        ge=0,
        le=65536,
    )
    export_rank: int = setting(
        0, "largest rank of the exported adapter; 0: as it was learned", ge=0, le=65536
    )
