from __future__ import annotations

import io
import sys

import pytest

from server_app.log import log, warn


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    warn("site A\x1b[2J\n12:00:00  all is well\u2028\u202e\ud800")

    out = capsys.readouterr().out
    assert out.endswith("  warning: site A\\x1b[2J\\n12:00:00  all is well\\u2028\\u202e\\ud800\n")
    assert out.count("\n") == 1


def test_a_line_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    log("x" * 100_000)

    assert len(capsys.readouterr().out) == len("12:00:00  ") + 2000 + 1


@pytest.mark.parametrize(
    ("encoding", "expected"), [("ascii", rb"a \xb7 \u6771"), ("utf-8", "a · 東".encode())]
)
def test_no_encoding_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch, encoding: str, expected: bytes
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))

    log("a · 東")

    assert raw.getvalue().rstrip().endswith(expected)
