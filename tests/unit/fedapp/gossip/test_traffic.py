"""What a round cost: sums and words."""

from __future__ import annotations

from fedapp.gossip.traffic import Traffic


def test_rounds_add_up() -> None:
    first, second = Traffic(1, 2, 3, 4, 5, 6, 7), Traffic(10, 20, 30, 40, 50, 60, 70)

    assert first + second == Traffic(11, 22, 33, 44, 55, 66, 77)
    assert sum([first, second], Traffic()) == first + second


def test_it_reads_as_a_sentence() -> None:
    assert Traffic(1500, 2_000_000, 2, 1).sentence() == (
        "sent 1,500 bytes in 2 messages, received 2,000,000 bytes in 1 message"
    )
    assert Traffic(resent=12).sentence().endswith(", 12 bytes had to come again")
