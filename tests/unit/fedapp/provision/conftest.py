"""A coordinator with an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from provisioning import Coordinator


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path)
