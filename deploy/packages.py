"""Print what pyproject.toml asks for, a requirement a line: ``packages.py [EXTRA,EXTRA] [build]``.

So that an image's packages are installed, and fetched beforehand, without the project's own code:
a change of the code then costs seconds. ``build`` adds what the project is built with.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Print the list, sorted."""
    document = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    found = set(project["dependencies"])
    for word in filter(None, " ".join(arguments).replace(",", " ").split()):
        more = document["build-system"]["requires"] if word == "build" else None
        found |= set(more or project["optional-dependencies"][word])
    print(*sorted(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
