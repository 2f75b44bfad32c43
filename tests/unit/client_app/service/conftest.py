"""A site's service that runs."""

from __future__ import annotations

import pytest
from site_desk import Service, write_site


@pytest.fixture
def service(tmp_path):
    with Service(write_site(tmp_path)) as running:
        yield running
