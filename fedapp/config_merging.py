"""The settings of the methods that differ in how products are merged, a section each."""

from __future__ import annotations

from typing import Literal

from fedapp.config_section import Section, setting


class SvdSection(Section):
    """Method svd."""

    factorisation: Literal["symmetric", "orthonormal-a", "orthonormal-b"] = setting(
        "symmetric", "where the singular values go; orthonormal-a is FlexLoRA"
    )
    preserve_norm: bool = setting(False, "rescale so that truncation keeps the Frobenius norm")


class SubspaceRegSection(Section):
    """Method subspace-reg (arXiv 2606.22724)."""

    mu: float = setting(0.1, "weight of mu/2 ||s B A - DW_g||_F^2", ge=0, le=1e6)
    alpha: float = setting(0.01, "weight of alpha/2 ||B - B_g||_F^2", ge=0, le=1e6)
    lambda_: float = setting(1e-5, "weight of lambda/2 (||A||^2 + ||B||^2)", ge=0, le=1e6)
    average_layers: bool = setting(
        False, "divide the penalty by the number of pairs, as the released code does"
    )
    norm_cap: float = setting(
        0.0, "largest Frobenius norm of a site's parameter change per round; 0: none", ge=0
    )
    preserve_norm: Literal["none", "a", "split"] = setting(
        "a", "restore the norm lost by truncation: on A (B stays orthonormal) or split over both"
    )
