"""Nothing but the origin's own signature over these bytes, valid now, makes an envelope."""

import dataclasses
import time

import pytest

from fedapp.errors import EnvelopeRefused
from fedapp.gossip.envelope import new_nonce
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.refusals import REASONS
from fedapp.gossip.signed import MAX_LIFETIME, Rules, parse, sign, verify
from fedapp.gossip.throwaway import Authority
from fedapp.gossip.trust import Trust

from .test_envelope import ENVELOPE

AUTHORITY = Authority.create()
TRUST = Trust(AUTHORITY.certificate)
ZURICH, BERN = AUTHORITY.issue("Zürich"), AUTHORITY.issue("Bern")
NOW = time.time()
RULES = Rules(run="0" * 32, members=frozenset({"Zürich", "Bern"}), max_size=10**7, skew=10.0)


def envelope(**changes):
    times = {"created": int(NOW * 1000), "expiry": int(NOW * 1000) + 60_000}
    return dataclasses.replace(ENVELOPE, **{**times, "nonce": new_nonce(), **changes})


def refused(message, reason, now=NOW, rules=RULES):
    with pytest.raises(EnvelopeRefused) as caught:
        verify(message, TRUST, rules, now)
    assert caught.value.reason == reason
    assert reason in REASONS
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_the_origin_signed_is_believed_whoever_carries_it():
    signed = sign(envelope(), ZURICH)

    got = verify(parse(signed.to_bytes()), TRUST, RULES, NOW)

    assert got == signed


def test_every_altered_byte_is_noticed():
    data = sign(envelope(), ZURICH).to_bytes()

    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x01
        try:
            got = verify(parse(bytes(changed)), TRUST, RULES, NOW)
        except EnvelopeRefused as error:
            assert error.reason in REASONS  # noqa: PT017
        else:
            pytest.fail(f"byte {place} is not protected: {got}")


def test_a_forged_origin_is_refused():
    forged = sign(envelope(origin="Zürich"), BERN)

    assert "is that of 'Bern'" in refused(forged.message, "bad-certificate")


def test_the_origins_certificate_with_anothers_signature_is_refused():
    forged = sign(envelope(), BERN).message
    forged.certificate = ZURICH.certificate

    refused(forged, "bad-signature")


def test_a_certificate_of_another_authority_is_refused():
    other = Authority.create().issue("Zürich")

    refused(sign(envelope(), other).message, "bad-certificate")


def test_a_certificate_of_another_authority_that_shows_the_right_one_is_refused():
    forged = sign(envelope(), Authority.create().issue("Zürich")).message
    forged.certificate = ZURICH.certificate

    refused(forged, "bad-signature")


def test_somebody_outside_the_consortium_file_is_refused():
    refused(sign(envelope(origin="Genf"), AUTHORITY.issue("Genf")).message, "unknown-origin")


def test_another_run_is_refused():
    refused(sign(envelope(run="1" * 32), ZURICH).message, "wrong-run")


def test_a_size_beyond_the_limit_is_refused():
    sentence = refused(sign(envelope(size=10**7 + 1), ZURICH).message, "oversized")

    assert "gossip.max-payload-mb" in sentence


def test_time_is_judged_with_the_stated_tolerance():
    message = sign(envelope(), ZURICH).message

    verify(message, TRUST, RULES, NOW + 60 + 9)
    refused(message, "expired", NOW + 60 + 11)
    verify(message, TRUST, RULES, NOW - 9)
    refused(message, "from-the-future", NOW - 11)


def test_an_envelope_for_ever_is_refused():
    longest = int(MAX_LIFETIME * 1000)
    created = int(NOW * 1000)

    verify(sign(envelope(expiry=created + longest), ZURICH).message, TRUST, RULES, NOW)
    refused(sign(envelope(expiry=created + longest + 1000), ZURICH).message, "long-lived")


def test_an_endless_signature_is_refused():
    message = sign(envelope(), ZURICH).message
    message.signature += b"\0" * 100

    refused(message, "malformed")


def test_what_is_wrapped_around_an_envelope_is_not_passed_on():
    signed = sign(envelope(), ZURICH)
    data = signed.to_bytes() + b"\xfa\x07\x03abc"  # an unknown field

    assert verify(parse(data), TRUST, RULES, NOW).to_bytes() == signed.to_bytes()


def test_what_is_no_message_is_refused():
    with pytest.raises(EnvelopeRefused, match="cannot be read"):
        parse(b"\xff\xff")
    refused(gossip_pb2.SignedEnvelope(), "malformed")
