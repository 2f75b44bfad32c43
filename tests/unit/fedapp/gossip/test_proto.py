"""The generated modules are what protoc makes of the .proto files."""

import pytest
from protocol import ROOT, SOURCES, generate, generated

from fedapp.gossip.proto.gossip_pb2 import Envelope


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_committed_modules_are_generated_from_the_committed_proto(tmp_path, source):
    generate(tmp_path, source)

    for name in generated(source):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()


def test_a_message_survives_its_bytes():
    message = Envelope(version=1, round=3, origin="Zürich", size=2**40)

    assert Envelope.FromString(message.SerializeToString()) == message
