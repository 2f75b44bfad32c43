"""Waits double up to a cap and are not the same for everybody."""

from fedapp.gossip.backoff import Backoff


def test_waits_double_up_to_the_cap_within_their_upper_half():
    backoff = Backoff(0.5, 8.0)

    for longest in (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0):
        assert longest / 2 <= backoff.next() <= longest


def test_waits_of_two_nodes_differ():
    first, second = Backoff(1.0, 1.0), Backoff(1.0, 1.0)

    assert [first.next() for _ in range(5)] != [second.next() for _ in range(5)]


def test_an_answer_brings_back_the_first_wait():
    backoff = Backoff(0.5, 8.0)
    for _ in range(4):
        backoff.next()

    backoff.reset()

    assert backoff.next() <= 0.5


def test_a_peer_that_is_gone_for_months_is_no_overflow():
    backoff = Backoff(0.2, 10.0)

    waits = [backoff.next() for _ in range(5000)]

    assert max(waits) <= 10.0
    assert min(waits[100:]) >= 5.0
