"""Honest nodes on bad days: forwarding, restarts, moves, full disks, twins."""

import asyncio
import errno
import os
import types

import pytest
from consortium import LAYOUT, Consortium, settings

import fedapp.gossip.node as node_module
from fedapp.errors import MissingReplies, StoreError
from fedapp.gossip import partial as partial_module

PAYLOAD = os.urandom(100_000)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def publish(node, round=1, payload=PAYLOAD):
    return node.publish(round, payload, layout_digest=LAYOUT)


def test_an_update_gets_through_another_peer_and_is_verified_as_its_origins(tmp_path):
    async def go():
        async with Consortium(tmp_path) as world:
            a = await world.start("A", neighbours=["B"])
            b = await world.start("B", neighbours=["A"])
            c = await world.start("C", neighbours=["B"], origins=["A", "B"])
            await publish(a)
            await publish(b, payload=b"from B")
            updates = await c.gather(1, deadline=10, minimum=2)
            assert [(e.origin, p) for e, p in updates] == [("A", PAYLOAD), ("B", b"from B")]
            [entry] = c._store.find(1, ["A"])
            # The very bytes that A signed, with A's own certificate.
            assert entry.signed.message == a._store.get(entry.signed.id).signed.message
            assert entry.signed.message.certificate == world.identities["A"].certificate
            assert a.traffic.total().payload_sent == len(PAYLOAD)  # to B alone

    run(go())


def test_what_two_peers_offer_comes_once(tmp_path):
    async def go():
        async with Consortium(tmp_path, "ABCD") as world:
            nodes = {name: await world.start(name, origins=["A"]) for name in "BCD"}
            a = await world.start("A")
            await publish(a)
            for node in nodes.values():
                [(envelope, payload)] = await node.gather(1, deadline=10, minimum=1)
                assert (envelope.origin, payload) == ("A", PAYLOAD)
                assert node.traffic.total().payload_received == len(PAYLOAD)
                assert not node.refusals.all()

    run(go())


def test_a_peer_that_restarts_elsewhere_rejoins_and_keeps_what_it_published(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a, b = await world.start("A"), await world.start("B")
            first = await publish(b)
            await a.gather(1, deadline=10, minimum=1)
            before = b.address
            await b.close()
            b = await world.start("B")
            assert b.address != before
            assert b.published == 1
            assert await publish(b) == first
            await publish(b, 2)
            [(envelope, _)] = await a.gather(2, deadline=10, minimum=1)
            assert envelope.round == 2
            assert a.membership["B"].address == b.address

    run(go())


def test_a_peer_that_restarts_at_its_old_address_is_found_soon(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            b = await world.start("B")
            a = await world.start("A")
            await publish(b)
            await a.gather(1, deadline=10, minimum=1)
            await b.close()
            with pytest.raises(MissingReplies):
                await a.gather(2, deadline=1.5, minimum=1)
            assert a.alive() == {"B": False}
            b = await world.start("B", listen=b.address, neighbours=[])  # it does not call A
            await publish(b, 2)
            start = asyncio.get_running_loop().time()
            await a.gather(2, deadline=20, minimum=1)
            assert asyncio.get_running_loop().time() - start < 5
            assert a.alive() == {"B": True}

    run(go())


def test_a_new_address_of_the_consortium_file_is_taken(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            b = await world.start("B")
            await publish(b)
            world.addresses.clear()
            a = await world.start("A")
            with pytest.raises(MissingReplies, match="its address is not known"):
                await a.gather(1, deadline=0.3, minimum=1)
            a.meet("B", b.address)
            assert len(await a.gather(1, deadline=10, minimum=1)) == 1
            assert a.alive() == {"B": True}

    run(go())


def test_in_a_directed_topology_those_who_ask_are_told_the_address(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            b = await world.start("B", neighbours=["A"])  # does not know where A is
            a = await world.start("A", neighbours=[], listeners=["B"])
            await publish(a)
            assert len(await b.gather(1, deadline=10, minimum=1)) == 1
            assert not a._links

    run(go())


def test_a_transfer_that_a_crash_interrupts_goes_on_after_the_restart(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            b = await world.start("B")
            signed = await publish(b)
            # What a killed A would leave: two chunks of seven.
            folder = tmp_path / "A"
            folder.mkdir()
            (folder / f"{signed.id.hex()}.part").write_bytes(PAYLOAD[: 2 * 16384])
            a = await world.start("A")
            [(_, payload)] = await a.gather(1, deadline=10, minimum=1)
            assert payload == PAYLOAD
            assert a.traffic.total().payload_received == len(PAYLOAD) - 2 * 16384

    run(go())


def test_a_full_disk_stops_no_node_and_the_update_comes_when_there_is_room(
    tmp_path, monkeypatch, caplog
):
    full = True
    reserve = os.posix_fallocate

    def fallocate(*arguments):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(*arguments)

    monkeypatch.setattr(partial_module.os, "posix_fallocate", fallocate)

    async def go():
        nonlocal full
        async with Consortium(tmp_path, "AB") as world:
            a, b = await world.start("A"), await world.start("B")
            await publish(b)
            with pytest.raises(MissingReplies):
                await a.gather(1, deadline=0.7, minimum=1)
            assert "No space left on device; make room" in caplog.text
            full = False
            assert len(await a.gather(1, deadline=10, minimum=1)) == 1

    run(go())


def test_an_update_that_the_store_has_no_room_for_is_told(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a = await world.start("A", settings=settings(store_mb=0.05))
            with pytest.raises(StoreError, match=r"raise gossip.store-mb"):
                await publish(a)
            await publish(a, payload=b"small")

    run(go())


def test_of_two_nodes_with_one_name_the_first_update_counts(tmp_path):
    async def go():
        async with Consortium(tmp_path, "ABC") as world:
            b = await world.start("B")
            twin = world.node("B", store=tmp_path / "twin")
            await twin.start()
            try:
                await publish(b)
                await publish(twin, payload=b"from the twin")
                a = await world.start("A", settings=settings(digest_wait=0.3))
                assert len(await a.gather(1, deadline=10, minimum=1)) == 1
                await publish(twin, 2, payload=b"from the twin")
                a.meet("B", twin.address)
                [(envelope, _)] = await a.gather(2, deadline=10, minimum=1)
                assert envelope.origin == "B"
                assert not (await a.gather(3, deadline=0.5))
            finally:
                await twin.close()

    run(go())


def test_updates_that_came_before_stay_for_a_gathering_that_comes_late(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a, b = await world.start("A"), await world.start("B")
            await publish(b)
            await publish(a)
            while not a._store.find(1, ["B"]):
                await asyncio.sleep(0.02)
            await b.close()
            assert len(await a.gather(1, deadline=1, minimum=1)) == 1

    run(go())


def test_a_peer_that_lags_gets_the_rounds_that_the_others_have_left(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            b = await world.start("B")
            for number in (1, 2, 3):
                await publish(b, number, bytes([number]) * 100)
            a = await world.start("A")
            for number in (1, 2, 3):
                [(envelope, payload)] = await a.gather(number, deadline=10, minimum=1)
                assert (envelope.round, payload) == (number, bytes([number]) * 100)

    run(go())


def test_an_update_that_expires_before_it_is_gathered_is_not_given_out(tmp_path, monkeypatch):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a, b = await world.start("A"), await world.start("B")
            envelope = await publish(b)
            await publish(a)
            while not a._store.find(1, ["B"]):
                await asyncio.sleep(0.02)
            late = envelope.expiry / 1000 + 301
            monkeypatch.setattr(node_module, "time", types.SimpleNamespace(time=lambda: late))
            with pytest.raises(MissingReplies):
                await a.gather(1, deadline=0.3, minimum=1)
            monkeypatch.undo()

    run(go())


@pytest.mark.parametrize("own", [PAYLOAD, b"another"])  # a payload of two updates is one file
def test_an_update_that_the_disk_loses_is_pulled_again(tmp_path, caplog, own):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a, b = await world.start("A"), await world.start("B")
            await publish(b)
            await publish(a, payload=own)
            while not (entries := a._store.find(1, ["B"])):
                await asyncio.sleep(0.02)
            entries[0].path.write_bytes(PAYLOAD[::-1])
            [(_, payload)] = await a.gather(1, deadline=10, minimum=1)
            assert payload == PAYLOAD
            assert "is not what was received any more" in caplog.text
            assert a.traffic.total().payload_received >= len(PAYLOAD)

    run(go())


def test_a_run_that_goes_back_to_a_checkpoint_exchanges_its_rounds_again(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a, b = await world.start("A"), await world.start("B")
            for number in (1, 2, 3):
                await publish(b, number, bytes([number]) * 10)
                await publish(a, number, bytes([number]) * 10)
                await a.gather(number, deadline=10, minimum=1)
                await b.gather(number, deadline=10, minimum=1)
            await a.rewind(2)
            with pytest.raises(MissingReplies):  # B has not gone back: its old update is refused
                await a.gather(2, deadline=0.5, minimum=1)
            assert {r.reason for r in a.refusals.all() if r.origin == "B"} == {"replayed"}
            await b.rewind(2)
            for number in (2, 3):
                await publish(b, number, bytes([number]) * 20)
                await publish(a, number, bytes([number]) * 20)
                for node in (a, b):
                    [(_, payload)] = await node.gather(number, deadline=10, minimum=1)
                    assert payload == bytes([number]) * 20
            assert a._store.find(1, ["B"])

    run(go())


def test_a_mistake_of_the_code_does_not_cost_a_neighbour_for_good(tmp_path, caplog, monkeypatch):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a, b = await world.start("A"), await world.start("B")
            await publish(b)
            consider, failures = a._inbox.consider, []

            def fail_twice(*arguments):
                if len(failures) < 2:
                    failures.append(1)
                    raise RuntimeError("a slip")
                return consider(*arguments)

            monkeypatch.setattr(a._inbox, "consider", fail_twice)
            assert len(await a.gather(1, deadline=10, minimum=1)) == 1
            assert caplog.text.count("the link to B failed") == 2

    run(go())


def test_a_closed_node_leaves_nothing_behind(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a = await world.start("A")
            await world.start("B")
            await publish(a)
            await a.close()
            await a.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert not [task for task in others if "Link.run" in repr(task) and not task.done()][1:]
            again = await world.start("A")
            assert again.published == 1

    run(go())
