"""An idle peer is small: the network loads no numbers, no Flower and no plots."""

import subprocess
import sys

import pytest

import fedapp.gossip


def loaded(module: str) -> set[str]:
    code = f"import {module}, sys; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in output.stdout.split()}


def test_a_node_needs_no_heavy_package():
    assert not loaded("fedapp.gossip.node") & {"numpy", "torch", "flwr", "pydantic", "rich"}


def test_the_package_alone_loads_no_grpc():
    assert not loaded("fedapp.gossip") & {"grpc", "cryptography"}


def test_the_public_names_are_there():
    for name in fedapp.gossip.__all__:
        assert getattr(fedapp.gossip, name).__module__.startswith("fedapp.gossip")
    with pytest.raises(AttributeError, match="has no attribute 'Gossip'"):
        _ = fedapp.gossip.Gossip
