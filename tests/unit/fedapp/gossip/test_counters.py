"""A message counts for the round in which the node was; memory is bounded."""

from fedapp.gossip.counters import Counters, Traffic


def test_messages_count_for_the_present_round():
    counters = Counters()
    counters.round = 1
    counters.sent(10)
    counters.received(100, payload=90)
    counters.round = 2
    counters.sent(7, payload=5)

    assert counters.rounds[1] == Traffic(
        sent_bytes=10, sent_messages=1, received_bytes=100, received_messages=1, payload_received=90
    )
    assert counters.rounds[2] == Traffic(sent_bytes=7, sent_messages=1, payload_sent=5)
    assert counters.total() == Traffic(17, 100, 2, 1, 5, 90, 0)


def test_only_the_newest_rounds_are_remembered():
    counters = Counters()
    for number in range(1, 10_050):
        counters.round = number
        counters.sent(1)

    assert len(counters.rounds) == 10_000
    assert min(counters.rounds) == 50
