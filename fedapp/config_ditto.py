"""The settings of Ditto."""

from __future__ import annotations

from fedapp.config_section import Section, setting


class DittoSection(Section):
    """Method ditto (arXiv 2012.04221)."""

    lambda_: float = setting(
        0.1,
        "weight of lambda/2 ||v - w_g||^2, v a site's own model, w_g as received",
        ge=0,
        le=1e6,
    )
