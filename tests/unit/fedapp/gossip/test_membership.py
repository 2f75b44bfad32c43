"""Who belongs, where each listens, and who is heard: by this node's own calls."""

import pytest

from fedapp.errors import ConfigError
from fedapp.gossip.membership import Member, Membership, is_address


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def membership(clock):
    members = [Member("A"), Member("B", "b.example:9001"), Member("C")]
    return Membership("A", members, dead_after=10.0, monotonic=clock)


@pytest.mark.parametrize(
    "text", ["a:1", "10.0.0.1:65535", "gossip.zürich.ch".encode("idna").decode() + ":9", "[::1]:80"]
)
def test_a_host_and_a_port_are_an_address(text):
    assert is_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:1:2", "a b:1", "::1:80", "a:1\n", "-a:1",
        "unix:/tmp/x", "dns:///a:1", "http://a:1", "a" * 300 + ":1", "a:\u0661",
    ],
)  # fmt: skip
def test_anything_else_is_none(text):
    assert not is_address(text)


@pytest.mark.parametrize(
    ("arguments", "finding"),
    [(("",), "1 to 100"), (("a\nb",), "printable"), (("A", "unix:/x"), "must be HOST:PORT")],
)
def test_a_line_of_the_consortium_file_that_makes_no_sense_is_refused(arguments, finding):
    with pytest.raises(ConfigError, match=finding):
        Member(*arguments)


@pytest.mark.parametrize(
    ("names", "finding"), [("AAB", "two peers with the name 'A'"), ("BC", "has no site 'A'")]
)
def test_a_name_twice_or_not_ones_own_is_refused(names, finding):
    with pytest.raises(ConfigError, match=finding):
        Membership("A", [Member(name) for name in names], 10.0)


def test_the_node_itself_is_no_peer(membership):
    assert {peer.name for peer in membership} == {"B", "C"}
    assert membership.names == {"A", "B", "C"}


def test_a_peer_counts_as_alive_until_it_has_been_silent_for_too_long(membership, clock):
    clock.now += 9
    assert membership.alive("B")
    clock.now += 2
    assert not membership.alive("B")
    membership.heard("B")
    assert membership.alive("B")
    assert not membership.alive("C")
    clock.now += 11
    assert not membership.alive("B")


def test_silence_counts_from_the_beginning(membership, clock):
    clock.now += 1000
    membership.begin()

    assert membership.alive("B")


def test_failures_are_counted_until_an_answer(membership):
    membership.failed("B", "no route")
    membership.failed("B", "no route")
    assert (membership["B"].failures, membership["B"].problem) == (2, "no route")

    membership.heard("B")
    assert (membership["B"].failures, membership["B"].problem) == (0, "")


def test_a_peer_can_move_to_an_address_and_to_nothing_else(membership):
    assert membership.move("B", "10.0.0.2:9001")
    assert not membership.move("B", "10.0.0.2:9001")
    assert not membership.move("B", "unix:/etc/passwd")
    assert membership["B"].address == "10.0.0.2:9001"


def test_a_peer_is_beyond_a_round_once_it_has_asked_for_a_later_one_long_enough(membership, clock):
    membership.asked("B", 3)
    clock.now += 5
    membership.asked("B", 3)
    clock.now += 6

    assert membership.beyond("B", 2, 10.0)
    assert not membership.beyond("B", 2, 12.0)
    assert not membership.beyond("B", 3, 10.0)
    assert not membership.beyond("C", 2, 10.0)
    membership.asked("B", 4)
    assert not membership.beyond("B", 2, 10.0)
