"""A site's mailbox: whole or absent, two rounds kept, and faults in sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedapp.errors import SiteStateError
from fedapp.gossip.traffic import Traffic
from fedapp.mailbox import Delivery, Letter, Mailbox

LETTER = Letter("Zürich", b"\x00numbers", "ab" * 32, "fp32")


def test_what_is_sent_and_delivered_is_found_again(tmp_path: Path) -> None:
    box = Mailbox.of(tmp_path, "Zürich", "0" * 32)
    assert box.outgoing(1) is None
    assert box.received(1) is None
    delivery = Delivery(
        (LETTER, Letter("Bern", b"", "cd" * 32, "int8", "ef" * 32)),
        ("Kiel",), "12" * 32, {"Bern": 2}, Traffic(sent_bytes=5),
    )  # fmt: skip

    box.send(1, LETTER)
    box.deliver(1, delivery)

    other = Mailbox.of(tmp_path, "Zürich", "0" * 32)
    assert other.outgoing(1) == LETTER
    assert other.received(1) == delivery
    assert Mailbox.of(tmp_path, "Zürich", "1" * 32).outgoing(1) is None
    assert box.folder.stat().st_mode & 0o777 == 0o700


def test_two_rounds_are_kept_and_a_repeated_round_replaces_what_was_there(tmp_path: Path) -> None:
    box = Mailbox(tmp_path / "mail")
    for round in (1, 2, 3):
        box.send(round, LETTER)
    assert [box.outgoing(round) is not None for round in (1, 2, 3)] == [False, True, True]
    box.send(2, Letter("Zürich", b"again", "ab" * 32, "fp32"))  # resumed from an earlier round
    assert box.outgoing(3) is None
    again = box.outgoing(2)
    assert again is not None
    assert again.payload == b"again"


def test_a_damaged_or_unwritable_mailbox_is_a_sentence(tmp_path: Path) -> None:
    box = Mailbox(tmp_path / "mail")
    box.send(1, LETTER)
    (box.folder / "out/round-000001/letter.json").write_text("{")
    with pytest.raises(SiteStateError, match=r"round-000001 of the site's mailbox is damaged"):
        box.outgoing(1)
    (tmp_path / "file").touch()
    with pytest.raises(SiteStateError, match=r"cannot be written .*; make room"):
        Mailbox(tmp_path / "file").send(1, LETTER)
