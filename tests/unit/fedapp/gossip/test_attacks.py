"""Attacks on a node's memory, places, files and disk by members and by others: none gets far."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import stat
import time
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
from consortium import LAYOUT, RUN, Consortium, settings
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from hostile_peer import CHUNK, HostilePeer, honest_pull, make_update

from fedapp.errors import IdentityError, MissingReplies, PeerError, StoreError
from fedapp.gossip.calls import DIGEST, MAX_REPLY, PULL
from fedapp.gossip.client import Client
from fedapp.gossip.counters import Counters
from fedapp.gossip.names import dns_name
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.server import _options
from fedapp.gossip.throwaway import Authority

from .test_node import run

PAYLOAD = os.urandom(4 * CHUNK)
HEALTH = "/grpc.health.v1.Health/"
ALONE = ("grpc.use_local_subchannel_pool", 1)  # every channel has a connection of its own


def channel(node, identity):
    options = [("grpc.ssl_target_name_override", dns_name("A")), ALONE]
    return grpc.aio.secure_channel(node.address, identity.channel_credentials(), options)


async def ending(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name


# ---- memory --------------------------------------------------------------------------------------


def test_a_compressed_request_is_not_unpacked(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A", neighbours=[])
            caller = channel(node, world.identities["B"])
            bomb = bytes(2**20)  # a thousandth of it on the wire; requests have half of it at most
            call = caller.unary_unary(DIGEST)(bomb, compression=grpc.Compression.Gzip, timeout=5)
            assert await ending(call) == "UNIMPLEMENTED"
            assert await ending(caller.unary_unary(DIGEST)(b"\xff", timeout=5)) != "UNAVAILABLE"
            await caller.close()

    run(go())


def test_a_compressed_answer_is_not_unpacked(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            signed, _ = make_update(world.identities["B"], PAYLOAD)

            async def bomb(request, context):
                context.set_compression(grpc.Compression.Gzip)
                await context.write(bytes(2 * MAX_REPLY))

            server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
            handler = {"Pull": grpc.unary_stream_rpc_method_handler(bomb)}
            service = PULL.split("/")[1]
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, handler),)
            )
            credentials = world.identities["B"].server_credentials()
            address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
            await server.start()
            client = Client(world.identities["A"], "B", address, settings(), Counters())
            with pytest.raises(PeerError, match="gzip"):
                await anext(client.pull(RUN, signed.id, 0, 4))
            await client.close()
            await server.stop(0)

    run(go())


def test_a_million_empty_offers_are_not_a_million_objects(tmp_path, monkeypatch):
    reply = gossip_pb2.DigestReply(entries=[b""] * 10**6).SerializeToString()
    assert len(reply) < MAX_REPLY

    async def answer(*_):
        return reply

    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A")
            node._inbox.open_round(1)
            client = Client(world.identities["A"], "B", "127.0.0.1:1", settings(), Counters())
            monkeypatch.setattr(client, "_call", answer)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            answered = await client.digest(RUN, 1, ["B"], [], "", 0.0)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < 40 * 1024  # KiB
            assert len(answered.entries) == 256
            assert node._inbox.consider("B", 1, answered.entries[0])[1] is False
            assert [refusal.reason for refusal in node.refusals.all()] == ["malformed"]
            await client.close()

    run(go())


def test_a_flood_of_headers_is_cut_off(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A", neighbours=[])
            caller = channel(node, world.identities["B"])
            flood = [(f"key-{number}", "x" * 100) for number in range(1000)]
            call = caller.unary_unary(DIGEST)(b"", metadata=flood, timeout=5)
            assert await ending(call) == "RESOURCE_EXHAUSTED"
            assert await caller.unary_unary(f"{HEALTH}Check")(b"", timeout=5)
            await caller.close()

    run(go())


# ---- places --------------------------------------------------------------------------------------


def test_calls_that_never_say_what_they_want_end_and_take_no_place_of_others(tmp_path):
    async def go():
        async with Consortium(tmp_path) as world:
            node = await world.start("A", neighbours=[], settings=settings(answer_timeout=1.0))
            silent = [channel(node, world.identities["B"]) for _ in range(2)]
            methods = (DIGEST, PULL, f"{HEALTH}Check")
            calls = [c.stream_unary(m)(timeout=20) for c in silent for m in methods * 3]
            for call in calls:
                await call.wait_for_connection()
            await asyncio.sleep(0.2)
            assert node._server._door.calls["B"] <= node._settings.calls_per_peer + 2
            other = channel(node, world.identities["C"])
            assert await other.unary_unary(f"{HEALTH}Check")(b"", timeout=5)
            ends = [await ending(call) for call in calls]
            assert set(ends) == {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
            assert node._server._door.calls.total() == 0
            for one in (*silent, other):
                await one.close()

    run(go())


def test_a_call_without_a_request_is_told(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A", neighbours=[])
            caller = channel(node, world.identities["B"])
            call = caller.stream_unary(DIGEST)(timeout=5)
            await call.done_writing()
            assert await ending(call) == "INVALID_ARGUMENT"
            await caller.close()

    run(go())


def test_health_is_told_to_members_alone_and_no_stream_of_it_is_held_open(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A", neighbours=[])
            member = channel(node, world.identities["B"])
            stranger = channel(node, world.authority.issue("Z"))  # the authority's, but no member
            check = stranger.unary_unary(f"{HEALTH}Check")(b"", timeout=5)
            assert await ending(check) == "PERMISSION_DENIED"
            watch = member.unary_stream(f"{HEALTH}Watch")(b"", timeout=5)
            assert await ending(watch.read()) == "UNIMPLEMENTED"
            named = member.unary_unary(f"{HEALTH}Check")(b"\n\x01x", timeout=5)
            assert await ending(named) == "NOT_FOUND"
            for one in (member, stranger):
                await one.close()

    run(go())


def test_connections_are_bounded_and_free_again_when_they_end(tmp_path, monkeypatch):
    monkeypatch.setattr("fedapp.gossip.server.resource.getrlimit", lambda _: (8, 8))

    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A", neighbours=[])
            host, port = node.address.split(":")
            crowd = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
            await asyncio.sleep(0.2)
            cut = [reader.at_eof() for reader, _ in crowd]
            assert sum(cut) >= 8
            for _, writer in crowd:
                writer.close()
            member = channel(node, world.identities["B"])
            call = member.unary_unary(f"{HEALTH}Check")
            assert await call(b"", timeout=10, wait_for_ready=True)
            await member.close()

    run(go())


def test_where_files_are_not_limited_connections_are_all_the_same(monkeypatch):
    monkeypatch.setattr("fedapp.gossip.server.resource.getrlimit", lambda _: (-1, -1))

    options = dict(_options(settings(), 10))

    assert options["grpc.max_allowed_incoming_connections"] == 296


def test_a_peer_that_gives_drop_by_drop_is_left_for_one_that_does_not(tmp_path):
    async def go():
        async with Consortium(tmp_path) as world:
            signed, found = make_update(world.identities["B"], PAYLOAD)

            async def drops(request, write):
                await write(found)
                for start in range(0, len(PAYLOAD), CHUNK):
                    await write(PAYLOAD[start : start + CHUNK])
                    await asyncio.sleep(2)

            slow = HostilePeer(world.identities["B"], [signed.message], drops)
            quick = HostilePeer(world.identities["C"], [], honest_pull(PAYLOAD, found))
            world.addresses["B"], world.addresses["C"] = await slow.start(), await quick.start()
            patient = settings(chunk_timeout=30, answer_timeout=0.5, digest_wait=0.2)
            node = await world.start("A", origins=["B"], settings=patient)
            gathering = asyncio.create_task(node.gather(1, deadline=20, minimum=1))
            while not slow.sent:
                await asyncio.sleep(0.05)
            quick.entries = [signed.message]
            [(_, payload)] = await gathering
            assert payload == PAYLOAD
            assert [pull.offset for pull in quick.pulls] == [2 * CHUNK]
            await slow.close()
            await quick.close()

    run(go())


# ---- certificates --------------------------------------------------------------------------------


def test_a_member_cannot_certify_others_with_a_chain(tmp_path):
    async def go():
        async with Consortium(tmp_path) as world:
            node = await world.start("A", neighbours=[])
            own, key = world.authority.certify("B")
            issuer = Authority(x509.load_pem_x509_certificate(own), load_pem_private_key(key, None))
            leaf, leaf_key = issuer.certify("C")
            chain = {"_certificate_pem": leaf + own, "_key_pem": leaf_key}
            forged = dataclasses.replace(world.identities["C"], **chain)
            caller = channel(node, forged)
            check = caller.unary_unary(f"{HEALTH}Check")(b"", timeout=2)
            assert await ending(check) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # not even answered
            await caller.close()
            der = x509.load_pem_x509_certificate(leaf).public_bytes(Encoding.DER)
            with pytest.raises(IdentityError, match="not issued by this consortium's authority"):
                node.identity.trust.verify(der, time.time())

    run(go())


# ---- the store -----------------------------------------------------------------------------------


def test_another_who_signs_the_same_bytes_does_not_get_into_their_way(tmp_path):
    """C signs what B published as its own, and gives a wrong chunk of it, slowly."""

    async def go():
        async with Consortium(tmp_path) as world:
            theirs, found = make_update(world.identities["B"], PAYLOAD)
            copied, _ = make_update(world.identities["C"], PAYLOAD)
            going = asyncio.Event()

            async def slow(request, write):
                await write(found)
                await write(PAYLOAD[:CHUNK])
                going.set()
                await asyncio.sleep(0.5)
                await write(bytes(CHUNK))

            async def after(request, write):
                await going.wait()
                await honest_pull(PAYLOAD, found)(request, write)

            honest = HostilePeer(world.identities["B"], [theirs.message], after)
            copier = HostilePeer(world.identities["C"], [copied.message], slow)
            world.addresses["B"], world.addresses["C"] = await honest.start(), await copier.start()
            node = await world.start("A")
            with pytest.raises(MissingReplies, match="1 updates of others came"):
                await node.gather(1, deadline=1.5, minimum=2)
            [(envelope, payload)] = await node.gather(1, deadline=5, minimum=1)
            assert (envelope.origin, payload) == ("B", PAYLOAD)
            assert {refusal.origin for refusal in node.refusals.all()} <= {"C"}
            await honest.close()
            await copier.close()

    run(go())


def test_an_origin_reserves_the_disk_for_one_update_a_round(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            updates = [make_update(world.identities["B"], os.urandom(4 * CHUNK)) for _ in range(6)]
            manifests = {signed.id: found for signed, found in updates}

            async def rubbish(request, write):
                await write(manifests[request.envelope])
                await write(bytes(CHUNK))

            peer = HostilePeer(world.identities["B"], [s.message for s, _ in updates], rubbish)
            world.addresses["B"] = await peer.start()
            node = await world.start("A")
            with pytest.raises(MissingReplies):
                await node.gather(1, deadline=1.5, minimum=1)
            assert node._store.used <= 4 * CHUNK
            reasons = [refusal.reason for refusal in node.refusals.all()]
            assert reasons.count("wrong-chunk") == 1
            assert set(reasons) == {"wrong-chunk", "second-update"}
            await node.follow(2)
            assert node._store.used == 0
            await peer.close()

    run(go())


@pytest.mark.parametrize("suffix", ["part", "envelope", "payload"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_somebody_planted_in_the_store_is_not_followed(tmp_path, suffix, kind):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            b = await world.start("B")
            envelope = await b.publish(1, PAYLOAD, layout_digest=LAYOUT)
            folder, secret = tmp_path / "A", tmp_path / "secret"
            folder.mkdir()
            secret.write_bytes(b"mine")
            name = envelope.payload_digest if suffix == "payload" else envelope.id.hex()
            for planted in (folder / f"{name}.{suffix}", folder / f".{name}.{suffix}.tmp"):
                if kind == "link":
                    planted.symlink_to(secret)
                else:
                    os.mkfifo(planted)
            a = await world.start("A")
            [(_, payload)] = await a.gather(1, deadline=10, minimum=1)
            assert payload == PAYLOAD
            assert secret.read_bytes() == b"mine"
            assert all(stat.S_ISREG(path.lstat().st_mode) for path in folder.iterdir())

    run(go())


def test_a_store_that_everybody_may_write_is_refused(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            (tmp_path / "A").mkdir()
            (tmp_path / "A").chmod(0o777)
            with pytest.raises(StoreError, match="everybody may write into the store"):
                await world.start("A")

    run(go())


# ---- clocks --------------------------------------------------------------------------------------


def test_a_clock_that_jumps_and_comes_back_costs_no_neighbour(tmp_path, monkeypatch):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a, b = await world.start("A"), await world.start("B")
            await b.publish(1, PAYLOAD, layout_digest=LAYOUT)
            await a.gather(1, deadline=10, minimum=1)
            jumped = SimpleNamespace(time=lambda: time.time() + 10**9, monotonic=time.monotonic)
            for module in ("inbox", "node", "callers"):
                monkeypatch.setattr(f"fedapp.gossip.{module}.time", jumped)
            with pytest.raises(MissingReplies):
                await a.gather(2, deadline=0.5, minimum=1)
            monkeypatch.undo()
            await b.publish(2, PAYLOAD[::-1], layout_digest=LAYOUT)
            [(envelope, payload)] = await a.gather(2, deadline=10, minimum=1)
            assert (envelope.round, payload) == (2, PAYLOAD[::-1])

    run(go())
