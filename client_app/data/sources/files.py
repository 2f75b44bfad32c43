"""placeholder"""

from __future__ import annotations

from client_app.data.table import Table
from fedapp.config import DataSection


def read_files(data: DataSection) -> Table:
    raise NotImplementedError
