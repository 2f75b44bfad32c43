"""Write each hospital's own part of the demonstration's records: ``demo_data.py FOLDER``.

Runs in the site image, which holds them all; each hospital of docker-compose.yml is then given its
own folder and nothing else.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from client_app.data.sources.heart import LABELS, note, patients


def main(arguments: Sequence[str]) -> int:
    """Write ``FOLDER/HOSPITAL/records.csv`` with the columns text, label and site."""
    if len(arguments) != 1:
        print("usage: demo_data.py FOLDER", file=sys.stderr)
        return 2
    rows = patients()
    for site in sorted({row["dataset"] for row in rows}):
        path = Path(arguments[0]) / site / "records.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["text", "label", "site"])
            for row in rows:
                if row["dataset"] == site:
                    writer.writerow([note(row), LABELS[int(row["num"]) > 0], site])
        print(f"Wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
