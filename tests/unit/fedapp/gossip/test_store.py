"""The store keeps what was verified, within its limits, and loses nothing on a full disk."""

import errno
import os
import time

import pytest

from fedapp.errors import EnvelopeRefused, StoreError
from fedapp.gossip import store_files
from fedapp.gossip.chunks import Grid, manifest, payload_digest
from fedapp.gossip.signed import sign, verify
from fedapp.gossip.store import Store

from .test_signed import BERN, NOW, RULES, TRUST, ZURICH, envelope

SIZE = 40_000


def check(message):
    return verify(message, TRUST, RULES, NOW)


def update(round=1, payload=None, identity=ZURICH):
    payload = os.urandom(SIZE) if payload is None else payload
    grid = Grid(len(payload), 16384)
    found = manifest(payload, grid)
    what = envelope(
        round=round, origin=identity.name, size=len(payload), chunk=16384,
        payload_digest=payload_digest(found, grid),
    )  # fmt: skip
    return sign(what, identity), payload, found


def make(folder, max_bytes=10**6, max_age=1000.0, keep=4):
    store = Store(folder, max_bytes, max_age, keep)
    store.open(check)
    return store


@pytest.fixture
def store(tmp_path):
    store = make(tmp_path / "store")
    yield store
    store.close()


def names(store):
    return sorted(path.suffix for path in store.folder.iterdir())


def receive(store, signed, payload, found):
    partial = store.begin(signed, found)
    while not partial.whole:
        partial.append(payload[partial.offset : partial.offset + 16384])
    return store.commit(signed, found)


def test_an_own_and_a_received_update_can_be_read_and_found(store):
    own, received = update(), update(identity=BERN)
    store.add(*own[:2], own[2])
    receive(store, *received)

    for signed, payload, found in (own, received):
        entry = store.get(signed.id)
        assert (entry.signed, entry.manifest) == (signed, found)
        assert store.read(entry) == payload
    assert {e.signed.envelope.origin for e in store.find(1, ["Zürich", "Bern"])} == {
        "Zürich", "Bern",
    }  # fmt: skip
    assert store.find(2, ["Bern"]) == []
    assert store.used == 2 * SIZE
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in store.folder.iterdir())


def test_a_restart_finds_what_was_there(tmp_path):
    first = make(tmp_path)
    signed, payload, found = update()
    first.add(signed, payload, found)
    first.close()

    second = make(tmp_path)

    assert second.read(second.get(signed.id)) == payload
    assert second.get(signed.id).manifest == found
    second.close()


@pytest.mark.parametrize("suffix", [".payload", ".envelope"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty", "long"])
def test_a_restart_drops_what_is_damaged(tmp_path, suffix, damage):
    first = make(tmp_path)
    good, bad = update(identity=BERN), update()
    for signed, payload, found in (good, bad):
        first.add(signed, payload, found)
    first.close()
    name = bad[0].envelope.payload_digest if suffix == ".payload" else bad[0].id.hex()
    path = tmp_path / f"{name}{suffix}"
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        changed = {"flip": data, "cut": data[:-1], "empty": b"", "long": data + b"\0" * 20_000}
        path.write_bytes(changed[damage])

    second = make(tmp_path)

    assert [entry.signed for entry in second] == [good[0]]
    assert names(second) == [".envelope", ".payload"]
    second.close()


def test_what_is_not_acceptable_any_more_is_dropped_at_a_restart(tmp_path):
    first = make(tmp_path)
    signed, payload, found = update()
    first.add(signed, payload, found)
    first.close()

    def refuse(_):
        raise EnvelopeRefused("no", reason="expired")

    second = Store(tmp_path, 10**6, 1000.0, 4)
    second.open(refuse)

    assert list(second) == []
    assert names(second) == []
    second.close()


def test_a_payload_that_changes_on_disk_is_not_given_out(store):
    signed, payload, found = update()
    entry = store.add(signed, payload, found)
    data = bytearray(entry.path.read_bytes())
    data[-1] ^= 1
    entry.path.write_bytes(data)

    with pytest.raises(StoreError, match="is not what was received any more") as caught:
        store.read(entry)

    assert caught.value.site == "Zürich"
    assert store.get(signed.id) is None
    assert names(store) == []


def test_a_payload_that_is_gone_is_told(store):
    entry = store.add(*(lambda u: (u[0], u[1], u[2]))(update()))
    entry.path.unlink()

    with pytest.raises(StoreError, match="cannot be read"):
        store.read(entry)


def test_two_updates_with_the_same_content_share_it(store):
    first, second = update(payload=b"x" * SIZE), update(payload=b"x" * SIZE, identity=BERN)
    one = store.add(first[0], first[1], first[2])
    two = store.commit(second[0], store.manifest(second[0].envelope.payload_digest))

    assert store.used == SIZE
    store.drop(one)
    assert store.read(two) == b"x" * SIZE
    store.drop(two)
    assert names(store) == []


def test_the_own_update_is_kept_while_the_same_bytes_are_still_coming_in(store):
    own, payload, found = update()
    theirs, *_ = update(payload=payload, identity=BERN)
    partial = store.begin(theirs, found)
    partial.append(payload[:16384])

    mine = store.add(own, payload, found)

    assert store.read(mine) == payload
    received = receive(store, theirs, payload, found)
    assert (store.read(received), store.read(mine)) == (payload, payload)
    assert ".part" not in names(store)


def test_of_an_origin_the_newest_rounds_stay(tmp_path):
    store = make(tmp_path, keep=2)
    for number in (1, 2, 3, 4):
        signed, payload, found = update(number)
        store.add(signed, payload, found)
    other = update(1, identity=BERN)
    store.add(other[0], other[1], other[2])

    rounds = sorted((e.signed.envelope.origin, e.signed.envelope.round) for e in store)
    assert rounds == [("Bern", 1), ("Zürich", 3), ("Zürich", 4)]
    store.close()


def test_old_rounds_make_room_and_the_present_one_stays(tmp_path):
    store = make(tmp_path, max_bytes=3 * SIZE)
    old = update(1)
    store.add(old[0], old[1], old[2])
    for identity in (ZURICH, BERN):
        signed, payload, found = update(2, identity=identity)
        receive(store, signed, payload, found)
    fourth = update(2, payload=os.urandom(SIZE))
    store.begin(fourth[0], fourth[2])

    assert store.get(old[0].id) is None
    fifth = update(2, payload=os.urandom(SIZE))
    with pytest.raises(StoreError, match=r"may hold 120000 bytes.*raise gossip.store-mb"):
        store.begin(fifth[0], fifth[2])
    with pytest.raises(StoreError, match="may hold"):
        store.add(fifth[0], fifth[1], fifth[2])
    assert len(store.find(2, ["Zürich", "Bern"])) == 2
    assert store.used == 3 * SIZE
    store.close()


def test_what_is_older_than_the_limit_goes(store):
    signed, payload, found = update()
    entry = store.add(signed, payload, found)

    store.drop_old(entry.stored + 999)
    assert store.get(signed.id) is not None
    store.drop_old(entry.stored + 1001)
    assert names(store) == []


def test_an_interrupted_transfer_goes_on_after_a_restart(tmp_path):
    signed, payload, found = update()
    first = make(tmp_path)
    first.begin(signed, found).append(payload[:16384])
    first.close()

    second = make(tmp_path)
    assert second.left_over(signed.id)
    assert second.used == SIZE
    partial = second.begin(signed, found)

    assert partial.offset == 16384
    receive(second, signed, payload, found)
    assert second.read(second.get(signed.id)) == payload
    assert second.used == SIZE
    second.close()


def test_what_an_earlier_process_left_makes_room(tmp_path):
    first = make(tmp_path)
    left = update()
    first.begin(left[0], left[2])
    first.close()
    second = make(tmp_path, max_bytes=SIZE)
    own = update(2)

    second.add(own[0], own[1], own[2])

    assert names(second) == [".envelope", ".payload"]
    second.close()


def test_what_was_left_too_long_ago_goes_at_the_start(tmp_path):
    first = make(tmp_path)
    signed, _, found = update()
    path = first.begin(signed, found).path
    first.close()
    os.utime(path, (time.time() - 2000, time.time() - 2000))

    second = make(tmp_path)

    assert names(second) == []
    second.close()


def test_an_abandoned_transfer_is_gone(store):
    signed, _, found = update()
    store.begin(signed, found)
    store.abandon(signed.id)
    store.abandon(signed.id)

    assert store.used == 0
    assert names(store) == []


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_full_disk_damages_nothing(store, monkeypatch, step):
    good = update()
    store.add(good[0], good[1], good[2])
    before = sorted(store.folder.iterdir())
    bad = update(2)
    partial = store.begin(bad[0], bad[2])
    for offset in range(0, SIZE, 16384):
        partial.append(bad[1][offset : offset + 16384])

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    target = store_files.os if step == "replace" else store_files
    monkeypatch.setattr(target, {"replace": "replace", "write": "open"}[step], full, raising=False)
    with pytest.raises(StoreError, match="No space left on device; make room"):
        store.commit(bad[0], bad[2])
    with pytest.raises(StoreError, match="No space left"):
        store.add(*(lambda u: (u[0], u[1], u[2]))(update(3)))
    monkeypatch.undo()

    assert store.read(store.get(good[0].id)) == good[1]
    assert {path for path in store.folder.iterdir() if path.suffix != ".part"} == set(before)
    entry = store.commit(bad[0], bad[2])  # once there is room, nothing has to come again
    assert store.read(entry) == bad[1]


def test_two_nodes_with_one_store_are_refused(tmp_path):
    first = make(tmp_path)

    with pytest.raises(StoreError, match="belongs to another node"):
        make(tmp_path)

    first.close()
    make(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="cannot be used"):
        make(tmp_path / "file" / "store")
