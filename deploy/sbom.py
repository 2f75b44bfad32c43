"""Print what is installed beside this Python as a CycloneDX 1.5 document.

``python sbom.py > sbom.json``, while an image is built. Packages of the base image's
distribution are listed where it has `dpkg-query`. No date and no random number: the same packages
give the same bytes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import metadata


def python_packages() -> list[dict[str, object]]:
    """Return the distributions that this Python can import."""
    found = {}
    for distribution in metadata.distributions():
        name, version = distribution.metadata["Name"], distribution.version
        plain = name.lower().replace("_", "-")
        licence = distribution.metadata.get("License-Expression") or ""
        component: dict[str, object] = {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{plain}@{version}",
        }
        if licence:
            component["licenses"] = [{"expression": licence}]
        found[plain] = component
    return [found[name] for name in sorted(found)]


def system_packages() -> list[dict[str, object]]:
    """Return the packages of a Debian base image; none on another."""
    if shutil.which("dpkg-query") is None:
        return []
    form = "${Package}\t${Version}\t${Architecture}\n"
    said = subprocess.run(
        ["dpkg-query", "--show", "--showformat", form], capture_output=True, text=True, check=True
    )
    rows = sorted(line.split("\t") for line in said.stdout.splitlines())
    return [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{name}@{version}?arch={machine}",
        }
        for name, version, machine in rows
    ]


if __name__ == "__main__":
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [*python_packages(), *system_packages()],
    }
    print(json.dumps(document, indent=1, ensure_ascii=False))
