"""The generated modules of the gossip layer's messages.

``python tests/support/protocol.py`` writes them anew beside ``gossip.proto``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("fedapp/gossip/proto")
GENERATED = ("gossip_pb2.py", "gossip_pb2.pyi")


def generate(target: Path) -> Path:
    """Write what protoc makes of ``gossip.proto`` below ``target`` and return its folder."""
    source = FOLDER / "gossip.proto"
    arguments = [
        "protoc", f"--proto_path={ROOT}", f"--python_out={target}", f"--pyi_out={target}",
        str(ROOT / source),
    ]  # fmt: skip
    if protoc.main(arguments) != 0:
        sys.exit(f"protoc refused {source}")
    return target / FOLDER


if __name__ == "__main__":
    generate(ROOT)
