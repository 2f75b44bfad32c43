"""Counting bytes and messages per round."""

from __future__ import annotations

from fedapp.gossip.traffic import RoundTraffic, Traffic


def test_rounds_are_counted_apart_and_together() -> None:
    traffic = Traffic()
    traffic.sent(100, 1)
    traffic.sent(50, 1)
    traffic.received(1000, 1, again=10)
    traffic.received(7, 2)
    traffic.sent(3)

    assert traffic.of(1) == RoundTraffic(2, 1, 150, 1000, 10)
    assert traffic.of(2) == RoundTraffic(0, 1, 0, 7, 0)
    assert traffic.of(9) == RoundTraffic()
    assert traffic.total() == RoundTraffic(3, 2, 153, 1007, 10)


def test_old_rounds_are_forgotten_and_memory_stays_bounded() -> None:
    traffic = Traffic()
    traffic.sent(5)
    for round_ in range(1000):
        traffic.sent(1, round_)

    assert traffic.of(0) == RoundTraffic()
    assert traffic.of(999).bytes_sent == 1
    assert traffic.of(None).bytes_sent == 5
    assert len(traffic._rounds) <= 64


def test_it_reads_as_a_sentence() -> None:
    assert RoundTraffic(2, 1, 1500, 2_000_000, 0).sentence() == (
        "sent 1,500 bytes in 2 messages, received 2,000,000 bytes in 1 message"
    )
    assert RoundTraffic(bytes_again=12).sentence().endswith(", 12 of them again")
