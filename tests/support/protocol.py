"""The generated modules of the messages: between peers, and between a ClientApp and its site.

``python tests/support/protocol.py`` writes them anew beside their ``.proto`` files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    Path("fedapp/gossip/proto/gossip.proto"),
    Path("client_app/service/proto/site.proto"),
)


def generated(source: Path) -> tuple[Path, Path]:
    """Return the two files that protoc makes of ``source``."""
    return tuple(source.with_name(f"{source.stem}_pb2{end}") for end in (".py", ".pyi"))  # type: ignore[return-value]


def generate(target: Path, source: Path) -> None:
    """Write what protoc makes of ``source`` below ``target``."""
    arguments = [
        "protoc", f"--proto_path={ROOT}", f"--python_out={target}", f"--pyi_out={target}",
        str(ROOT / source),
    ]  # fmt: skip
    if protoc.main(arguments) != 0:
        sys.exit(f"protoc refused {source}")


if __name__ == "__main__":
    for each in SOURCES:
        generate(ROOT, each)
