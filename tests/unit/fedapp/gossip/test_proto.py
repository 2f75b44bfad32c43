"""The generated modules are what protoc makes of gossip.proto."""

import pytest
from protocol import FOLDER, GENERATED, ROOT, generate

from fedapp.gossip.proto.gossip_pb2 import Envelope


@pytest.mark.parametrize("name", GENERATED)
def test_the_committed_modules_are_generated_from_the_committed_proto(tmp_path, name):
    fresh = generate(tmp_path) / name

    assert fresh.read_text() == (ROOT / FOLDER / name).read_text()


def test_a_message_survives_its_bytes():
    message = Envelope(version=1, round=3, origin="Zürich", size=2**40)

    assert Envelope.FromString(message.SerializeToString()) == message
