"""What a site publishes is described truly and signed by itself."""

import os
import time

import pytest
from consortium import LAYOUT, RUN, settings

from fedapp.errors import EnvelopeRefused
from fedapp.gossip.chunks import manifest, payload_digest
from fedapp.gossip.publication import publication
from fedapp.gossip.signed import Rules, verify
from fedapp.gossip.throwaway import Authority

IDENTITY = Authority.create().issue("Zürich")
PAYLOAD = os.urandom(40_000)


def publish(payload=PAYLOAD, round=3, **changes):
    return publication(
        IDENTITY, RUN, round, payload, LAYOUT, "int8", settings(lifetime=600.0, **changes)
    )


def test_the_envelope_describes_the_payload_and_is_believed():
    now = time.time()

    signed, digests = publish()

    envelope = signed.envelope
    assert (envelope.run, envelope.round, envelope.origin) == (RUN, 3, "Zürich")
    assert (envelope.layout_digest, envelope.codec) == (LAYOUT, "int8")
    assert (envelope.size, envelope.chunk) == (40_000, 16384)
    assert digests == manifest(PAYLOAD, envelope.grid)
    assert envelope.payload_digest == payload_digest(digests, envelope.grid)
    assert envelope.expiry - envelope.created == 600_000
    assert abs(envelope.created / 1000 - now) < 5
    rules = Rules(RUN, {"Zürich"}, 10**6, 10.0)
    assert verify(signed.message, IDENTITY.trust, rules, now) == signed


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_published(kind):
    assert publish(kind(PAYLOAD))[1] == publish()[1]


def test_every_publication_has_a_nonce_of_its_own():
    assert publish()[0].envelope.nonce != publish()[0].envelope.nonce


@pytest.mark.parametrize("round", [0, -1, 10**7])
def test_a_round_that_cannot_be_is_refused(round):
    with pytest.raises(EnvelopeRefused, match="field 'round'"):
        publish(round=round)
