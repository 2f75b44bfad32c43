"""A member that lies, floods or stalls is refused by name, and holds nobody up."""

import asyncio
import dataclasses
import os

import pytest
from consortium import LAYOUT, RUN, Consortium, settings
from hostile_peer import CHUNK, HostilePeer, honest_pull, make_update

from fedapp.errors import MissingReplies
from fedapp.gossip.chunks import DIGEST_BYTES
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.throwaway import Authority

PAYLOAD = os.urandom(3 * CHUNK + 100)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 40))


async def meet(tmp_path, entries, pull, names="AB", **changes):
    """Let node A ask a hostile B for round 1, and return what A refused, and B."""
    async with Consortium(tmp_path, names) as world:
        peer = HostilePeer(world.identities["B"], [], pull)
        peer.entries = entries(world)
        world.addresses["B"] = await peer.start()
        node = await world.start("A", **changes)
        with pytest.raises(MissingReplies):
            await node.gather(1, deadline=1.0, minimum=1)
        refusals = node.refusals.all()
        used = node._store.used
        await peer.close()
        return refusals, peer, used


def own(world, payload=PAYLOAD, **changes):
    signed, _ = make_update(world.identities["B"], payload, **changes)
    return signed.message


def forged(world):
    message = make_update(world.identities["B"], PAYLOAD, origin="A")[0].message
    return message


def altered(world):
    message = own(world)
    message.signature = message.signature[:-1] + bytes([message.signature[-1] ^ 1])
    return message


def foreign(world):
    return make_update(Authority.create().issue("B"), PAYLOAD)[0].message


OFFERS = {
    "bad-certificate": foreign,
    "bad-signature": altered,
    "unknown-origin": lambda w: make_update(w.authority.issue("Z"), PAYLOAD)[0].message,
    "wrong-run": lambda w: own(w, run="f" * 32),
    "wrong-round": lambda w: own(w, round=2),
    "expired": lambda w: own(w, created=1, expiry=1000),
    "from-the-future": lambda w: own(w, created=2 * 10**12, expiry=2 * 10**12 + 10),
    "long-lived": lambda w: own(w, expiry=9 * 10**12),
    "oversized": lambda w: own(w, size=10**9),
    "malformed": lambda w: gossip_pb2.SignedEnvelope(envelope=b"\xff" * 100),
}


@pytest.mark.parametrize("reason", OFFERS)
def test_a_bad_offer_is_refused_by_name_and_nothing_is_pulled(tmp_path, reason):
    refusals, peer, used = run(meet(tmp_path, lambda w: [OFFERS[reason](w)], None))

    assert {(r.peer, r.reason) for r in refusals} == {("B", reason)}
    assert peer.pulls == []
    assert used == 0


def test_a_forged_origin_is_refused(tmp_path):
    refusals, _, _ = run(meet(tmp_path, lambda w: [forged(w)], None))

    assert {r.reason for r in refusals} == {"bad-certificate"}
    assert "that of 'B'" in refusals[0].sentence


def test_an_endless_list_of_bad_offers_is_taken_slowly(tmp_path):
    def entries(world):
        return [altered(world) for _ in range(300)]

    refusals, peer, _ = run(meet(tmp_path, entries, None))

    assert 2 <= len(peer.digests) < 40
    assert len(refusals) == len(peer.digests) or len(refusals) == len(peer.digests) - 1


def test_a_peer_that_repeats_itself_is_asked_slowly(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            peer = HostilePeer(world.identities["B"], [], None)
            peer.entries, peer.stubborn = [altered(world)], True
            world.addresses["B"] = await peer.start()
            await world.start("A")
            await asyncio.sleep(1.0)
            assert 2 <= len(peer.digests) < 40
            await peer.close()

    run(go())


def pulls(*pieces, forever=b""):
    async def pull(request, write):
        for piece in pieces:
            await write(piece)
        while forever:
            await write(forever)

    return pull


def manifest_of(payload):
    from fedapp.gossip.chunks import Grid, manifest

    return manifest(payload, Grid(len(payload), CHUNK))


FOUND = manifest_of(PAYLOAD)
FIRST = PAYLOAD[:CHUNK]
STREAMS = {
    "no manifest": ("wrong-manifest", pulls(b"")),
    "another manifest": ("wrong-manifest", pulls(FOUND[:-1] + b"\0")),
    "an endless manifest": ("wrong-manifest", pulls(FOUND * 100)),
    "no chunk": ("wrong-chunk", pulls(FOUND, b"")),
    "endless tiny chunks": ("wrong-chunk", pulls(FOUND, forever=b"\0")),
    "an altered byte": ("wrong-chunk", pulls(FOUND, FIRST[:-1] + bytes([FIRST[-1] ^ 1]))),
    "a long chunk": ("wrong-chunk", pulls(FOUND, PAYLOAD)),
    "the second chunk first": ("wrong-chunk", pulls(FOUND, PAYLOAD[CHUNK : 2 * CHUNK])),
    "the first chunk for ever": ("wrong-chunk", pulls(FOUND, forever=FIRST)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_bad_stream_is_refused_at_its_first_bad_chunk(tmp_path, name):
    reason, pull = STREAMS[name]

    refusals, peer, used = run(meet(tmp_path, lambda w: [own(w)], pull))

    assert [(r.peer, r.origin, r.reason) for r in refusals] == [("B", "B", reason)]
    assert len(peer.pulls) == 1  # not asked again for this update
    assert used in (0, len(PAYLOAD))


def test_a_message_of_many_megabytes_is_not_even_received(tmp_path):
    refusals, _, _ = run(meet(tmp_path, lambda w: [own(w)], pulls(FOUND, b"\0" * 2**23)))

    assert refusals == []  # the transport ends the call: RESOURCE_EXHAUSTED, and it is tried again


def test_a_stream_that_never_ends_is_cut_at_the_signed_size(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            pieces = [PAYLOAD[at : at + CHUNK] for at in range(0, len(PAYLOAD), CHUNK)]
            peer = HostilePeer(
                world.identities["B"], [own(world)], pulls(FOUND, *pieces, forever=FIRST)
            )
            world.addresses["B"] = await peer.start()
            node = await world.start("A")
            [(_, payload)] = await node.gather(1, deadline=10, minimum=1)
            assert payload == PAYLOAD
            assert node.traffic.total().payload_received == len(PAYLOAD)
            await asyncio.sleep(0.2)
            sent = peer.sent
            await asyncio.sleep(0.2)
            assert peer.sent == sent  # the call was ended
            await peer.close()

    run(go())


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_peer_that_falls_silent_in_the_middle_is_left_and_another_goes_on(tmp_path, after):
    async def go():
        async with Consortium(tmp_path) as world:
            signed, found = make_update(world.identities["B"], PAYLOAD)

            async def stall(request, write):
                await write(found)
                for at in range(request.offset, after * CHUNK, CHUNK):
                    await write(PAYLOAD[at : at + CHUNK])
                await asyncio.sleep(60)

            slow = HostilePeer(world.identities["B"], [signed.message], stall)
            other = HostilePeer(world.identities["C"], [], honest_pull(PAYLOAD, found))
            world.addresses["B"] = await slow.start()
            world.addresses["C"] = await other.start()
            node = await world.start("A", origins=["B"], settings=settings(chunk_timeout=0.5))
            gathering = asyncio.create_task(node.gather(1, deadline=10, minimum=1))
            while not slow.pulls:
                await asyncio.sleep(0.01)
            other.entries = [signed.message]  # only now, so that the silent one is asked first
            [(envelope, payload)] = await gathering
            assert (envelope.origin, payload) == ("B", PAYLOAD)
            assert other.pulls[0].offset == after * CHUNK  # nothing came twice
            assert node.traffic.total().payload_received == len(PAYLOAD)
            await slow.close()
            await other.close()

    run(go())


def test_a_peer_that_moves_in_the_middle_of_an_update_gives_the_rest_from_there(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            signed, found = make_update(world.identities["B"], PAYLOAD)

            async def stall(request, write):
                await write(found)
                await write(FIRST)
                await asyncio.sleep(60)

            old = HostilePeer(world.identities["B"], [signed.message], stall)
            new = HostilePeer(world.identities["B"], [], honest_pull(PAYLOAD, found))
            world.addresses["B"] = await old.start()
            node = await world.start("A", settings=settings(chunk_timeout=30))
            gathering = asyncio.create_task(node.gather(1, deadline=20, minimum=1))
            while node.traffic.total().payload_received < CHUNK:
                await asyncio.sleep(0.02)
            node.meet("B", await new.start())
            [(_, payload)] = await gathering
            assert payload == PAYLOAD
            assert new.pulls[0].offset == CHUNK
            await old.close()
            await new.close()

    run(go())


def test_an_altered_chunk_from_one_peer_is_asked_of_another_alone(tmp_path):
    async def go():
        async with Consortium(tmp_path) as world:
            signed, found = make_update(world.identities["B"], PAYLOAD)
            bad = HostilePeer(
                world.identities["B"], [signed.message], pulls(found, FIRST, b"\0" * CHUNK)
            )
            good = HostilePeer(world.identities["C"], [signed.message], honest_pull(PAYLOAD, found))
            world.addresses["B"], world.addresses["C"] = await bad.start(), await good.start()
            node = await world.start("A", origins=["B"])
            [(_, payload)] = await node.gather(1, deadline=10, minimum=1)
            assert payload == PAYLOAD
            traffic = node.traffic.total()
            assert traffic.resent in (0, CHUNK)
            assert traffic.payload_received == len(PAYLOAD) + traffic.resent
            await bad.close()
            await good.close()

    run(go())


def test_two_updates_of_one_origin_for_one_round_are_one_too_many(tmp_path):
    async def go():
        async with Consortium(tmp_path) as world:
            first, found = make_update(world.identities["B"], PAYLOAD)
            second, _ = make_update(world.identities["B"], PAYLOAD[::-1])
            one = HostilePeer(world.identities["B"], [first.message], honest_pull(PAYLOAD, found))
            two = HostilePeer(world.identities["C"], [], None)
            world.addresses["B"], world.addresses["C"] = await one.start(), await two.start()
            node = await world.start("A", settings=settings(digest_wait=0.3))
            with pytest.raises(MissingReplies):
                await node.gather(1, deadline=0.5, minimum=2)
            two.entries = [second.message]
            with pytest.raises(MissingReplies):
                await node.gather(1, deadline=0.7, minimum=2)
            [refusal] = node.refusals.all()
            assert (refusal.peer, refusal.origin, refusal.reason) == ("C", "B", "second-update")
            assert "two nodes may run under one name" in refusal.sentence
            await one.close()
            await two.close()

    run(go())


def test_a_node_notices_another_one_with_its_own_name(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            twin, _ = make_update(world.identities["A"], b"from the twin")
            peer = HostilePeer(world.identities["B"], [twin.message], None)
            world.addresses["B"] = await peer.start()
            node = await world.start("A")
            await node.publish(1, b"mine", layout_digest=LAYOUT)
            with pytest.raises(MissingReplies):
                await node.gather(1, deadline=1.0, minimum=1)
            assert {r.reason for r in node.refusals.all()} == {"own-name"}
            await peer.close()

    run(go())


def test_an_old_round_offered_again_is_refused_even_after_a_restart(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            updates = {
                n: make_update(world.identities["B"], bytes([n]) * 100, round=n) for n in (1, 2)
            }
            peer = HostilePeer(world.identities["B"], [], None)

            async def pull(request, write):
                number = 1 if request.envelope == updates[1][0].id else 2
                await honest_pull(bytes([number]) * 100, updates[number][1])(request, write)

            peer.pull = pull
            world.addresses["B"] = await peer.start()
            quick = settings(digest_wait=0.3)
            node = await world.start("A", settings=quick)
            for number in (1, 2):
                peer.entries = [updates[number][0].message]
                await node.gather(number, deadline=10, minimum=1)
            peer.entries, peer.stubborn = [updates[1][0].message], True
            await node.close()
            pulled = len(peer.pulls)
            again = world.node("A", settings=quick)
            # Its memory of updates is gone, that of what was accepted is not.
            for path in (tmp_path / "A").glob("*.payload"):
                path.unlink()
            world.nodes["A"] = again
            await again.start()
            for number in (1, 2):
                with pytest.raises(MissingReplies):
                    await again.gather(number, deadline=0.7, minimum=1)
                again._inbox.open_round(number)
            reasons = {r.reason for r in again.refusals.all()}
            assert reasons == {"replayed", "wrong-round"}
            assert len(peer.pulls) == pulled
            await peer.close()

    run(go())


def test_a_clock_that_differs_too_much_is_told_once_with_both_numbers(tmp_path, caplog):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            peer = HostilePeer(world.identities["B"], [], None)
            peer.clock = -1000.0
            world.addresses["B"] = await peer.start()
            node = await world.start("A", settings=settings(digest_wait=0.1))
            await asyncio.sleep(1.0)
            assert node.membership["B"].clock_offset == pytest.approx(-1000, abs=5)
            assert len(peer.digests) > 1
            assert caplog.text.count("the clock of B is -1000 s from this node's, 300 s") == 1
            await peer.close()

    run(go())


def test_a_replay_under_a_new_nonce_needs_the_origins_key(tmp_path):
    def entries(world):
        signed, _ = make_update(world.identities["B"], PAYLOAD)
        message = signed.message
        message.envelope = dataclasses.replace(signed.envelope, nonce="0" * 32).to_bytes()
        return [message]

    refusals, _, _ = run(meet(tmp_path, entries, None))

    assert {r.reason for r in refusals} == {"bad-signature"}


def test_identities_have_32_bytes():
    assert DIGEST_BYTES == 32
    assert len(RUN) == 32
