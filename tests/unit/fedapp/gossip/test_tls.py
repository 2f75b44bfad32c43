"""Whoever is no member by a valid certificate of the consortium gets no answer, and gives none."""

import asyncio
import dataclasses
import socket
import time
import types
from datetime import timedelta

import grpc
import grpc.aio
import pytest
from consortium import RUN, Consortium, settings
from hostile_peer import HostilePeer, honest_pull, make_update

import fedapp.gossip.node as node_module
from fedapp.errors import GossipError, IdentityError, MissingReplies, PeerError
from fedapp.gossip import callers
from fedapp.gossip.calls import DIGEST
from fedapp.gossip.client import Client
from fedapp.gossip.counters import Counters
from fedapp.gossip.names import dns_name
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.throwaway import Authority


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def later(moment):
    return types.SimpleNamespace(time=lambda: moment, monotonic=time.monotonic)


def ask(address, identity, name="A"):
    """Ask the node at ``address`` with an identity, as a peer would."""

    async def go():
        client = Client(identity, name, address, settings(), Counters())
        try:
            await client.check_health()
            return await client.digest(RUN, 1, ["A"], [], "", 0.0)
        finally:
            await client.close()

    return go()


def test_a_member_is_answered_and_nobody_else(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A")
            assert (await ask(node.address, world.identities["B"])).entries == []
            with pytest.raises(PeerError, match="no connection"):  # another authority
                await ask(node.address, Authority.create().issue("B"))
            with pytest.raises(PeerError, match=r"PERMISSION_DENIED.*'Z' is not another member"):
                await ask(node.address, world.authority.issue("Z"))
            with pytest.raises(PeerError, match="'A' is not another member"):
                await ask(node.address, world.identities["A"])
            with pytest.raises(PeerError, match="no connection"):  # not the name it expects there
                await ask(node.address, world.identities["B"], name="C")

    run(go())


def mixed(certificates, authority):
    """An identity that shows a certificate its own node would refuse, but trusts ``authority``."""
    good = authority.issue("B")
    certificate, key = certificates
    pems = {"_certificate_pem": certificate, "_key_pem": key, "_authority_pem": authority.pem}
    return dataclasses.replace(good, **pems)


def test_an_expired_certificate_and_one_of_another_authority_are_refused_by_the_port(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A")
            expired = world.authority.certify("B", timedelta(seconds=-1))
            foreign = Authority.create().certify("B")
            for certificates in (expired, foreign):
                with pytest.raises(PeerError, match="no connection"):
                    await ask(node.address, mixed(certificates, world.authority))
            assert await ask(node.address, mixed(world.authority.certify("B"), world.authority))

    run(go())


def test_a_certificate_that_expires_while_connected_is_refused_from_then_on(tmp_path, monkeypatch):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A")
            client = Client(world.identities["B"], "A", node.address, settings(), Counters())
            await client.digest(RUN, 1, ["A"], [], "", 0.0)
            end = world.identities["B"].not_after
            monkeypatch.setattr(callers, "time", later(end + 1))
            with pytest.raises(PeerError, match=r"PERMISSION_DENIED.*has expired"):
                await client.digest(RUN, 1, ["A"], [], "", 0.0)
            monkeypatch.undo()
            await client.close()

    run(go())


def test_a_caller_without_a_certificate_or_without_tls_gets_no_answer(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A")
            override = [("grpc.ssl_target_name_override", dns_name("A"))]
            channels = [
                grpc.aio.insecure_channel(node.address),
                grpc.aio.secure_channel(
                    node.address, grpc.ssl_channel_credentials(world.authority.pem), override
                ),
            ]
            request = gossip_pb2.DigestRequest(run=RUN, round=1).SerializeToString()
            for channel in channels:
                for method in (DIGEST, "/grpc.health.v1.Health/Check"):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await channel.unary_unary(method)(request, timeout=3)
                    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                await channel.close()

    run(go())


@pytest.mark.parametrize("who", ["other-authority", "other-name", "plain", "expired"])
def test_a_node_takes_nothing_from_a_port_that_is_not_the_peers(tmp_path, who):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            signed, found = make_update(world.identities["B"], b"x" * 100)
            peer = HostilePeer(
                world.identities["B"], [signed.message], honest_pull(b"x" * 100, found)
            )
            credentials = {
                "other-authority": Authority.create().issue("B").server_credentials,
                "other-name": world.authority.issue("C").server_credentials,
                "plain": grpc.insecure_server_credentials,
                "expired": mixed(
                    world.authority.certify("B", timedelta(seconds=-1)), world.authority
                ).server_credentials,
            }[who]()
            world.addresses["B"] = await peer.start(credentials)
            node = await world.start("A")
            with pytest.raises(MissingReplies, match="no connection to the peer"):
                await node.gather(1, deadline=1, minimum=1)
            assert peer.digests == peer.pulls == []
            await peer.close()

    run(go())


def test_silence_on_either_side_of_a_connection_holds_nobody_up(tmp_path):
    async def go():
        silent = socket.create_server(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        async with Consortium(tmp_path, "AB") as world:
            world.addresses["B"] = f"127.0.0.1:{port}"
            node = await world.start("A", settings=settings(connect_timeout=0.5))
            host, own_port = node.address.split(":")
            strangers = [await asyncio.open_connection(host, own_port) for _ in range(20)]
            with pytest.raises(MissingReplies, match=r"no answer of the peer|no connection"):
                await node.gather(1, deadline=1.2, minimum=1)
            # Whoever does not shake hands is cut off.
            for reader, _ in strangers:
                assert await asyncio.wait_for(reader.read(), 5) is not None
            start = time.monotonic()
            await node.close()
            assert time.monotonic() - start < 3
            for _, writer in strangers:
                writer.close()
        silent.close()

    run(go())


def test_the_same_port_with_the_right_certificate_is_taken(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            signed, found = make_update(world.identities["B"], b"x" * 100)
            peer = HostilePeer(
                world.identities["B"], [signed.message], honest_pull(b"x" * 100, found)
            )
            world.addresses["B"] = await peer.start()
            node = await world.start("A")
            [(envelope, payload)] = await node.gather(1, deadline=10, minimum=1)
            assert (envelope, payload) == (signed.envelope, b"x" * 100)
            await peer.close()

    run(go())


def test_a_node_whose_certificate_expires_publishes_no_more(tmp_path, monkeypatch):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A")
            monkeypatch.setattr(node_module, "time", later(node.identity.not_after + 1))
            with pytest.raises(IdentityError, match="has expired"):
                await node.publish(1, b"x", layout_digest="ab" * 32)
            monkeypatch.undo()

    run(go())


def test_a_port_that_another_node_has_is_told(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            first = await world.start("A")
            second = world.node("B", listen=first.address)
            with pytest.raises(GossipError, match=f"port {first.address} cannot be opened"):
                await second.start()

    run(go())
