"""A record that only grows: what it finds, what it recovers from, and what it cannot see."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.errors import LedgerError
from fedapp.hash_chain import GENESIS, HashChain, read_chain

BODIES: list[dict[str, Any]] = [{"n": 1}, {"n": 2, "ü": [1.5, None]}, {"n": 3}, {"n": 4}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "record.jsonl"


@pytest.fixture
def lines(path: Path) -> list[bytes]:
    chain = HashChain(path)
    for body in BODIES:
        chain.append(body)
    chain.close()
    return path.read_bytes().splitlines(keepends=True)


def bodies(path: Path) -> list[dict[str, Any]]:
    return [link.body for link in read_chain(path)]


def test_what_is_written_is_read_and_a_stranger_can_verify_it(
    path: Path, lines: list[bytes]
) -> None:
    assert bodies(path) == BODIES
    previous = GENESIS
    for line in lines:  # with nothing but JSON and SHA-256
        found = json.loads(line)
        body = json.dumps(found["body"], sort_keys=True, separators=(",", ":"))
        assert found["previous"] == previous
        previous = hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()
        assert found["digest"] == previous
    chain = HashChain(path)
    assert (chain.head, chain.length) == (previous, 4)
    chain.close()


def test_it_grows_over_several_openings(path: Path, lines: list[bytes]) -> None:
    chain = HashChain(path)
    chain.append({"n": 5})
    chain.close()

    assert path.read_bytes().startswith(b"".join(lines))
    assert bodies(path) == [*BODIES, {"n": 5}]


@given(data=st.data())
def test_any_changed_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("chain") / "record.jsonl"
    chain = HashChain(path)
    for body in BODIES:
        chain.append(body)
    chain.close()
    content = bytearray(path.read_bytes())
    place = data.draw(
        st.integers(0, len(content) - 2), label="place"
    )  # the last end of line: below
    content[place] ^= data.draw(st.integers(1, 255), label="change")
    path.write_bytes(content)

    with pytest.raises(LedgerError, match=f"{path.name}, line [1-4], "):
        bodies(path)


@pytest.mark.parametrize(
    ("order", "number", "words"),
    [
        ((1, 2, 3), 1, "does not follow the line before"),
        ((0, 2, 3), 2, "does not follow the line before"),
        ((0, 2, 1, 3), 2, "does not follow the line before"),
        ((0, 1, 1, 2, 3), 3, "does not follow the line before"),
    ],
)
def test_removed_moved_and_repeated_lines_are_found(
    path: Path, lines: list[bytes], order: tuple[int, ...], number: int, words: str
) -> None:
    path.write_bytes(b"".join(lines[place] for place in order))

    with pytest.raises(LedgerError, match=f"line {number}, {words}"):
        HashChain(path)


def test_a_line_written_anew_with_its_own_digest_breaks_the_next(
    path: Path, lines: list[bytes]
) -> None:
    found = json.loads(lines[1])
    forged = HashChain(path.with_name("forged.jsonl"))
    forged.append(BODIES[0])
    forged.append({**found["body"], "n": 99})
    forged.close()
    path.write_bytes(
        forged.path.read_bytes() + b"".join(lines[2:]),
    )

    with pytest.raises(LedgerError, match="line 3, does not follow"):
        bodies(path)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"hello\n",
        b"[" * 100_000 + b"\n",
        b'{"body":1,"digest":"","previous":""}\n',
        b'{"body":{},"digest":1e400,"previous":[]}\n',
        b'{"body":{"n":1,"n":1},"digest":"x","previous":"y"}\n',
        b"\xff\xfe\n",
        b"no end of line either",
    ],
)
def test_what_is_no_line_of_it_is_refused_and_left_alone(path: Path, line: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(line)

    with pytest.raises(LedgerError, match="line 1, "):
        HashChain(path)
    assert path.read_bytes() == line


def test_an_endless_line_takes_no_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapp.hash_chain.LONGEST_LINE", 1000)
    path.parent.mkdir()
    path.write_bytes(b'{"body":{' * 10_000)

    with pytest.raises(LedgerError, match="line 1, is longer than 1000 bytes"):
        bodies(path)
    chain = HashChain(path.with_name("other"))
    with pytest.raises(ValueError, match="at most 1000 bytes"):
        chain.append({"long": "x" * 2000})
    chain.close()


def test_a_last_line_that_was_cut_anywhere_is_dropped(path: Path, lines: list[bytes]) -> None:
    whole = b"".join(lines[:-1])
    for length in range(len(lines[-1]) - 1):
        path.write_bytes(whole + lines[-1][:length])

        assert bodies(path) == BODIES[:-1]
        chain = HashChain(path)
        chain.append({"again": length})
        chain.close()
        assert bodies(path) == [*BODIES[:-1], {"again": length}]


def test_a_last_line_that_lacks_only_its_end_is_kept(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(lines).removesuffix(b"\n"))

    assert bodies(path) == BODIES
    chain = HashChain(path)
    chain.append({"n": 5})
    chain.close()
    assert bodies(path) == [*BODIES, {"n": 5}]


def test_zeros_after_a_power_cut_are_dropped(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(lines) + bytes(300))

    HashChain(path).close()
    assert path.read_bytes() == b"".join(lines)


def test_a_full_disk_leaves_the_file_as_it_was(
    path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = HashChain(path)
    pwrite = os.pwrite

    def half(handle: int, data: bytes, offset: int) -> int:
        pwrite(handle, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedapp.hash_chain.os.pwrite", half)
        with pytest.raises(OSError, match="No space left"):
            chain.append({"n": 5})

    assert path.read_bytes() == b"".join(lines)
    chain.append({"n": 6})
    chain.close()
    assert bodies(path) == [*BODIES, {"n": 6}]


def test_short_writes_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(
        "fedapp.hash_chain.os.pwrite", lambda h, data, offset: pwrite(h, data[:3], offset)
    )
    chain = HashChain(path)
    chain.append(BODIES[1])
    chain.close()

    assert bodies(path) == [BODIES[1]]


def _try(path: Path, queue: Any) -> None:
    try:
        HashChain(path).close()
        queue.put("opened")
    except LedgerError as error:
        queue.put(str(error))


def test_two_processes_cannot_write_at_once(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    chain = HashChain(path)
    first = context.Process(target=_try, args=(path, queue))
    first.start()
    assert "is written by another process" in queue.get(timeout=60)
    first.join(60)
    chain.close()
    chain.close()  # twice is once
    second = context.Process(target=_try, args=(path, queue))
    second.start()
    assert queue.get(timeout=60) == "opened"
    second.join(60)


def test_nan_is_no_word_of_json(path: Path) -> None:
    chain = HashChain(path)
    with pytest.raises(ValueError, match="Out of range"):
        chain.append({"score": float("nan")})
    chain.append({"score": 1})
    chain.close()
    assert bodies(path) == [{"score": 1}]
