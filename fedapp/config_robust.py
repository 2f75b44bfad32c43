"""The settings of the robust rules that methods are compared with, a section each."""

from __future__ import annotations

from fedapp.config_section import Section, setting

_FAULTY = "sites presumed faulty, f; 0: the most that Krum's proof bears, (n - 3) / 2 rounded down"


class KrumSection(Section):
    """Method krum (Blanchard et al., NeurIPS 2017)."""

    faulty: int = setting(0, _FAULTY, "sites", ge=0)


class MultiKrumSection(Section):
    """Method multi-krum (Blanchard et al., NeurIPS 2017)."""

    faulty: int = setting(0, _FAULTY, "sites", ge=0)
    selected: int = setting(0, "updates that are averaged, m; 0: n - f", "sites", ge=0)


class TrimmedMeanSection(Section):
    """Method trimmed-mean (arXiv 1803.01498)."""

    beta: float = setting(
        0.25, "share of the sites whose numbers are left out at either end", ge=0, lt=0.5
    )


class NormClipSection(Section):
    """Method norm-clip (arXiv 1911.07963)."""

    bound: float = setting(
        0.0, "largest norm of what a site adds to the model; 0: the median norm of the round", ge=0
    )


class FltrustSection(Section):
    """Method fltrust (arXiv 2012.13995)."""

    root: str = setting(
        "",
        "site whose records are trusted: its update is the yardstick, and is not averaged; "
        "it must train in every round",
    )


class BalanceSection(Section):
    """Method balance (arXiv 2406.10416)."""

    gamma: float = setting(0.3, "radius of acceptance in norms of the own model", ge=0, le=1e6)
    kappa: float = setting(1.0, "how fast the radius shrinks: exp(-kappa t / T)", ge=0, le=1e6)
    alpha: float = setting(0.5, "weight of the own model", ge=0, le=1)


class ClippingSection(Section):
    """Method clipping, self-centred (ClippedGossip, arXiv 2202.01545)."""

    radius: float = setting(
        0.0, "longest step towards a neighbour; 0: the second largest distance of the round", ge=0
    )


class UbarSection(Section):
    """Method ubar (arXiv 2002.08569)."""

    rho: float = setting(0.5, "share of the neighbours presumed honest", gt=0, le=1)
    alpha: float = setting(0.5, "weight of the own model", ge=0, le=1)
