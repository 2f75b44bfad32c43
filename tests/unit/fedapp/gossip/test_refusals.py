"""Refusals are remembered with their reason, and not for ever."""

from fedapp.errors import EnvelopeRefused
from fedapp.gossip.refusals import Refusal, Refusals


def test_a_refusal_tells_who_whose_when_and_why():
    refusals = Refusals()
    error = EnvelopeRefused("it is void", reason="expired", site="A", round=3)

    assert refusals.add("B", 4, error) == Refusal("B", "A", 4, "expired", "it is void")
    assert refusals.of_round(4) == refusals.all()
    assert refusals.of_round(3) == []


def test_a_flood_takes_bounded_memory_and_is_counted():
    refusals = Refusals()
    for number in range(5000):
        refusals.add("B", number, EnvelopeRefused("no", reason="malformed"))

    assert refusals.count == 5000
    assert len(refusals.all()) == 1000
    assert refusals.all()[-1].round == 4999
