"""The audit log and the command that verifies it."""

import pytest
from typer.testing import CliRunner

from fedapp.audit import AuditLog, verify
from fedapp.cli import app
from fedapp.errors import LedgerError


@pytest.fixture
def log(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl")
    for round in range(3):
        audit.record("asked", round=round)
    audit.record("refused", rule="hours")
    audit.close()
    return tmp_path / "audit.jsonl"


def run(*arguments):
    return CliRunner().invoke(app, ["audit", "verify", *map(str, arguments)])


def test_an_unbroken_log_is_counted(log):
    found = verify(log)

    assert (found.lines, found.events) == (4, {"asked": 3, "refused": 1})
    assert found.first <= found.last
    assert found.first.endswith("+00:00")


def test_a_folder_will_do_and_the_digest_is_printed(log):
    result = run(log.parent)

    assert result.exit_code == 0
    assert verify(log).head in result.output
    assert "4 lines, unbroken" in result.output


def test_a_line_that_was_altered_is_found(log):
    log.write_text(log.read_text().replace('"round":1', '"round":7'))

    result = run(log)

    assert result.exit_code == 6
    assert "line 2" in result.output


def test_lines_cut_off_the_end_are_found_with_a_digest_noted_earlier(log):
    head = verify(log).head
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))

    assert run(log).exit_code == 0
    result = run(log, "--head", head)
    assert result.exit_code == 6
    assert "lines were cut off" in result.output


def test_an_earlier_digest_is_still_there_when_lines_were_added(log):
    head = verify(log).head
    audit = AuditLog(log)
    audit.record("asked", round=4)
    audit.close()

    assert run(log, "--head", head).exit_code == 0


def test_no_log_is_a_sentence(tmp_path):
    result = run(tmp_path)

    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_two_writers_are_refused(log):
    audit = AuditLog(log)
    with pytest.raises(LedgerError, match="written by another process"):
        AuditLog(log)
    audit.close()


def test_a_full_disk_is_a_sentence_and_no_line(log, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    audit = AuditLog(log)
    monkeypatch.setattr("fedapp.hash_chain.os.pwrite", full)
    with pytest.raises(LedgerError, match="nothing is done without it"):
        audit.record("asked")
    audit.close()

    assert verify(log).lines == 4
