"""Mutated messages through every decoder of the gossip layer.

Whatever comes ends in a refusal with a name, or is, byte for byte, what the origin signed; nothing
crashes and nothing large is allocated.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from consortium import LAYOUT, RUN, Consortium
from hostile_peer import CHUNK, make_update
from mutations import mutate_bytes

from fedapp.errors import EnvelopeRefused, IdentityError
from fedapp.gossip.chunks import Grid
from fedapp.gossip.envelope import MAX_ENVELOPE, Envelope
from fedapp.gossip.partial import Partial
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.refusals import REASONS
from fedapp.gossip.signed import DOMAIN, Rules, Signed, parse, verify
from fedapp.gossip.throwaway import Authority
from fedapp.gossip.trust import Trust

AUTHORITY = Authority.create()
TRUST = Trust(AUTHORITY.certificate)
ORIGIN = AUTHORITY.issue("Zürich")
RULES = Rules(RUN, frozenset({"Zürich"}), max_size=10**6, skew=300.0)
PAYLOAD = random.Random(1).randbytes(3 * CHUNK + 10)
# Good for longer than a busy machine may take to come to the test that uses it.
SIGNED, MANIFEST = make_update(
    ORIGIN, PAYLOAD, expiry=int((time.time() + timedelta(days=1).total_seconds()) * 1000)
)
LARGEST_GROWTH = 64 * 2**20

# What a library thinks of a damaged serial number.
pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number")


@pytest.fixture(autouse=True)
def bounded_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < LARGEST_GROWTH


def outcome(message: Callable[[], gossip_pb2.SignedEnvelope]) -> tuple[str, Signed | None]:
    try:
        return "accepted", verify(message(), TRUST, RULES, time.time())
    except EnvelopeRefused as error:
        in_words(error)
        return error.reason, None


def in_words(error: EnvelopeRefused | IdentityError) -> None:
    """A refusal is a sentence on one line, and has one of the named reasons."""
    assert len(str(error)) < 1000
    assert str(error).isprintable()
    assert isinstance(error, IdentityError) or error.reason in REASONS


def mutated_envelopes(count: int, seed: int) -> Counter[str]:
    """Damage the bytes of a signed envelope: only what was signed may pass."""
    rng, data, found = random.Random(seed), SIGNED.to_bytes(), Counter[str]()
    for _ in range(count):
        changed = mutate_bytes(rng, data)
        reason, signed = outcome(lambda changed=changed: parse(changed))
        found[reason] += 1
        assert signed is None or (signed.id, signed.to_bytes()) == (SIGNED.id, data)
    return found


def signed_rubbish(count: int, seed: int) -> Counter[str]:
    """Damage an envelope and sign it with the origin's true key: only one in order may pass."""
    rng, data, found = random.Random(seed), SIGNED.envelope.to_bytes(), Counter[str]()
    prefix = DOMAIN + hashlib.sha256(ORIGIN.certificate).digest()
    for _ in range(count):
        changed = mutate_bytes(rng, data)
        message = gossip_pb2.SignedEnvelope(
            envelope=changed,
            signature=ORIGIN.sign(prefix + changed),
            certificate=ORIGIN.certificate,
        )
        reason, signed = outcome(lambda message=message: message)
        found[reason] += 1
        if signed is not None:
            in_order(signed.envelope, changed)
    return found


def in_order(envelope: Envelope, data: bytes) -> None:
    """Judge an accepted envelope by rules of its own."""
    assert len(data) <= MAX_ENVELOPE
    assert (envelope.run, envelope.origin) == (RUN, "Zürich")
    assert 1 <= envelope.round <= 10**6
    assert 1 <= envelope.size <= 10**6
    assert 2**14 <= envelope.chunk <= 2**21
    assert re.fullmatch("[0-9a-f]{64}", envelope.payload_digest)
    assert re.fullmatch("[0-9a-f]{64}", envelope.layout_digest)
    assert re.fullmatch("[0-9a-f]{32}", envelope.nonce)
    assert envelope.codec.isascii()
    now = time.time() * 1000
    assert envelope.created <= now + 300_000
    assert envelope.expiry >= now - 300_000
    assert 0 < envelope.expiry - envelope.created <= 7 * 86_400_000
    again = gossip_pb2.Envelope.FromString(data)
    assert (again.round, again.size, again.origin) == (envelope.round, envelope.size, "Zürich")
    assert again.payload_digest.hex() == envelope.payload_digest


def mutated_certificates(count: int, seed: int) -> Counter[str]:
    """Damage a certificate: it is refused, or says the same under the same signature."""
    rng, found = random.Random(seed), Counter[str]()
    for _ in range(count):
        changed = mutate_bytes(rng, ORIGIN.certificate)
        try:
            certified = TRUST.verify(changed, time.time())
        except IdentityError as error:
            in_words(error)
            found["refused"] += 1
        else:
            found["accepted"] += 1
            assert certified.name == "Zürich"
            assert certified.key == TRUST.verify(ORIGIN.certificate, time.time()).key
    return found


def mutated_chunks(count: int, seed: int, folder: Path) -> Counter[str]:
    """Damage a chunk: only the origin's bytes are kept."""
    rng, found = random.Random(seed), Counter[str]()
    partial = Partial(folder / "x.part", Grid(len(PAYLOAD), CHUNK), MANIFEST)
    for _ in range(count):
        right = PAYLOAD[partial.offset : partial.offset + CHUNK]
        changed = mutate_bytes(rng, right)
        try:
            partial.append(changed)
            assert changed == right
            found["accepted"] += 1
        except EnvelopeRefused as error:
            in_words(error)
            found["refused"] += 1
        if partial.whole:
            partial.discard()
            partial = Partial(folder / "x.part", Grid(len(PAYLOAD), CHUNK), MANIFEST)
    partial.discard()
    return found


class Aborted(Exception):
    pass


class Context:
    """The part of a gRPC context that a handler uses."""

    def __init__(self, certificate: bytes) -> None:
        self.certificate, self.written = certificate, 0

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self.certificate]}

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        assert details.isascii()
        assert details.isprintable()
        raise Aborted(code.name)

    async def write(self, data: bytes) -> None:
        self.written += len(data)


def mutated_requests(count: int, seed: int, folder: Path) -> Counter[str]:
    """Damage requests to a node: an answer that both sides can read, or an end with a status."""
    return asyncio.run(_mutated_requests(count, seed, folder))


async def _mutated_requests(count: int, seed: int, folder: Path) -> Counter[str]:
    rng, found = random.Random(seed), Counter[str]()
    async with Consortium(folder, "AB") as world:
        node = await world.start("A", neighbours=[])
        envelope = await node.publish(1, PAYLOAD, layout_digest=LAYOUT)
        pem = world.identities["B"]._certificate_pem
        digest = gossip_pb2.DigestRequest(
            run=RUN, round=1, origins=["A", "B"], have=[b"\0" * 32], address="b:1"
        ).SerializeToString()
        pull = gossip_pb2.PullRequest(run=RUN, envelope=envelope.id, offset=CHUNK)
        for number in range(count):
            handler: Any = (node._server._digest, node._server._pull)[number % 2]
            data = mutate_bytes(rng, (digest, pull.SerializeToString())[number % 2])
            context = Context(mutate_bytes(rng, pem) if rng.random() < 0.1 else pem)
            try:
                async with asyncio.timeout(10):  # waits of 2 s at most are what a request can ask
                    answer = await _answer(handler, data, context)
            except Aborted as error:
                found[str(error)] += 1
                continue
            found["answered"] += 1
            assert context.written <= len(PAYLOAD) + len(MANIFEST)
            if answer is not None:
                assert len(gossip_pb2.DigestReply.FromString(answer).entries) <= 1
        assert node._server._door.calls.total() == 0
        assert {peer.name for peer in node.membership} == {"B"}
    return found


async def _request(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _answer(handler: Any, data: bytes, context: Context) -> bytes | None:
    # Do not wait for news that never comes: damage may well ask for two seconds.
    task = asyncio.ensure_future(handler(_request(data), context))
    done, _ = await asyncio.wait({task}, timeout=0.05)
    if not done:
        task.cancel()
        await asyncio.wait({task})
        return None
    result: bytes | None = task.result()
    return result


def mutated_offers(count: int, seed: int, folder: Path) -> Counter[str]:
    """Damage answers of a peer: a node takes at most the one true update from them."""
    return asyncio.run(_mutated_offers(count, seed, folder))


async def _mutated_offers(count: int, seed: int, folder: Path) -> Counter[str]:
    rng, found = random.Random(seed), Counter[str]()
    async with Consortium(folder, "AB") as world:
        node = await world.start("A")
        node._inbox.open_round(1)
        signed, _ = make_update(world.identities["B"], PAYLOAD)
        reply = gossip_pb2.DigestReply(entries=[signed.to_bytes()] * 3, clock=5).SerializeToString()
        for _ in range(count):
            try:
                answer = gossip_pb2.DigestReply.FromString(mutate_bytes(rng, reply))
            except Exception:
                found["unreadable"] += 1
                continue
            for entry in answer.entries:
                identity, accepted = node._inbox.consider("B", 1, entry)
                found["taken" if accepted else "refused"] += 1
                assert not accepted or identity == signed.id
        assert len(node._inbox._offers) <= 1
        assert len(node.refusals.all()) <= 1000
    return found


DECODERS = {
    "envelopes": (mutated_envelopes, 40_000, ("accepted", "malformed", "bad-signature")),
    "signed": (signed_rubbish, 15_000, ("accepted", "malformed", "oversized", "long-lived")),
    "certificates": (mutated_certificates, 15_000, ("refused",)),
    "chunks": (mutated_chunks, 10_000, ("refused",)),
    "requests": (mutated_requests, 10_000, ("answered", "INVALID_ARGUMENT", "PERMISSION_DENIED")),
    "offers": (mutated_offers, 10_000, ("taken", "refused", "unreadable")),
}
assert sum(count for _, count, _ in DECODERS.values()) == 100_000


def _run(name: str, count: int, seed: int, folder: Path) -> Counter[str]:
    decoder: Any = DECODERS[name][0]
    needs_folder = name in ("chunks", "requests", "offers")
    return Counter(decoder(count, seed, folder) if needs_folder else decoder(count, seed))


@pytest.mark.parametrize("name", DECODERS)
def test_mutated_messages_end_in_a_refusal_with_a_name(name, tmp_path):
    found = _run(name, 500, 1, tmp_path)

    assert found.total() >= 400


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_a_hundred_thousand_mutated_messages_do(name, tmp_path):
    _, count, expected = DECODERS[name]

    found = _run(name, count, 2, tmp_path)

    assert found.total() >= count * 0.9
    for reason in expected:
        assert found[reason] > 0, found
