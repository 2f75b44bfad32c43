"""What the integration tests share: a user account whose daemons end with the module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from desk import Desk
from interface import ROOT


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = Desk(tmp_path_factory.mktemp("desk"))
    yield made
    for project in (*made.projects, ROOT):
        made.fedapp("stop", project)
