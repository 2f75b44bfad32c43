"""What a benchmark ran on, as its results tell it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any


def describe(load_before: tuple[float, float, float], *packages: str) -> dict[str, Any]:
    """Return versions and machine, with the load before and after.

    Parameters
    ----------
    load_before : tuple of float
        `os.getloadavg` before the measurement.
    packages : str
        Distributions whose versions matter.
    """
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "platform": platform.platform(),
            "load_average_before": load_before,
            "load_average_after": os.getloadavg(),
        },
    }
