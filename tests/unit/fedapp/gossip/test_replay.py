"""Rounds of an origin only go up, a nonce counts once, and a restart forgets neither."""

import dataclasses

import pytest

from fedapp.errors import EnvelopeRefused, StoreError
from fedapp.gossip.envelope import new_nonce
from fedapp.gossip.replay import ReplayGuard

from .test_envelope import ENVELOPE

RUN = ENVELOPE.run


def envelope(round, origin="A", **changes):
    return dataclasses.replace(
        ENVELOPE, round=round, origin=origin, **{"nonce": new_nonce(), **changes}
    )


def refused(guard, again, reason):
    with pytest.raises(EnvelopeRefused) as caught:
        guard.admit(again)
    assert caught.value.reason == reason
    assert (caught.value.site, caught.value.round) == (again.origin, again.round)


@pytest.fixture
def guard(tmp_path):
    return ReplayGuard(RUN, tmp_path / "accepted.json")


def test_rounds_go_up_for_every_origin_by_itself(guard):
    for number in (1, 2, 5):
        guard.admit(envelope(number))
    guard.admit(envelope(1, "B"))

    assert (guard.newest("A"), guard.newest("B"), guard.newest("C")) == (5, 1, 0)


def test_an_old_round_a_second_update_and_a_known_nonce_are_refused(guard):
    first = envelope(3)
    guard.admit(first)

    refused(guard, envelope(2), "old-round")
    refused(guard, envelope(3), "second-update")
    refused(guard, first, "replayed")
    refused(guard, dataclasses.replace(first, round=4), "replayed")
    assert guard.newest("A") == 3


def test_a_check_remembers_nothing(guard):
    guard.check(envelope(3))

    guard.admit(envelope(1))


def test_a_restart_forgets_nothing(guard, tmp_path):
    first = envelope(3)
    guard.admit(first)
    guard.save()

    again = ReplayGuard(RUN, tmp_path / "accepted.json")
    again.load()

    refused(again, first, "replayed")
    refused(again, envelope(2), "old-round")


def test_another_run_begins_anew(guard, tmp_path):
    guard.admit(envelope(3))
    guard.save()
    other = ReplayGuard("1" * 32, tmp_path / "accepted.json")

    other.load()

    other.admit(envelope(1))


def test_no_file_is_a_beginning(guard):
    guard.load()

    assert guard.newest("A") == 0


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"[]", b"null", b"\xff", b"[" * 9999, b'{"run": 1, "origins": {}}',
        b'{"run": "0", "origins": []}', b'{"run": "0", "origins": {"A": 1}}',
        b'{"run": "0", "origins": {"A": {"round": "3"}}}',
        b'{"run": "0", "origins": {"A": {"round": true}}}',
        b'{"run": "0", "origins": {"A": {"round": -1}}}',
        b'{"run": "0", "origins": {"A": {"nonces": {"a": 1.5}}}}',
        b'{"run": "0", "origins": {"A": {"nonces": ["a"]}}}',
        b'{"run": "0", "origins": {"A": {"other": 1}}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_because_old_updates_would_count_again(tmp_path, content):
    path = tmp_path / "accepted.json"
    path.write_bytes(content)

    with pytest.raises(StoreError, match="is damaged"):
        ReplayGuard(RUN, path).load()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="cannot be written"):
        ReplayGuard(RUN, tmp_path / "file" / "accepted.json").save()


def test_after_a_rewind_a_round_may_come_again_under_a_new_nonce_alone(guard):
    old = [envelope(number) for number in (1, 2, 3)]
    for one in old:
        guard.admit(one)

    guard.rewind(2)

    refused(guard, envelope(1), "second-update")
    refused(guard, old[1], "replayed")
    guard.admit(envelope(2))
    refused(guard, old[2], "replayed")
    guard.admit(envelope(3))


def test_what_was_lost_may_come_again_and_what_came_before_may_not(guard):
    first, second = envelope(2), envelope(3)
    guard.admit(first)
    guard.admit(second)

    guard.withdraw(second)
    guard.withdraw(envelope(9, "B"))

    refused(guard, first, "replayed")
    refused(guard, envelope(2), "second-update")
    guard.admit(second)


def test_nonces_of_void_envelopes_are_forgotten_and_the_round_is_not(guard):
    first = envelope(3)
    guard.admit(first)

    guard.forget_expired(first.expiry / 1000 + 299, skew=300)
    refused(guard, first, "replayed")
    guard.forget_expired(first.expiry / 1000 + 301, skew=300)
    refused(guard, first, "second-update")


def test_an_origin_pushes_out_its_own_nonces_alone(guard):
    other = envelope(1, "B")
    guard.admit(other)
    for number in range(1, 1500):
        guard.admit(envelope(number))

    refused(guard, other, "replayed")
    refused(guard, envelope(1499), "second-update")
