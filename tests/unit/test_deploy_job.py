"""How a run of the containers is started and its end waited for, without a SuperLink."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from interface import ROOT

ROW = '{"success": true, "runs": [{"status": "finished:completed", "status-details": ""}]}'


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("job", ROOT / "deploy" / "job.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "STEP", 0.01)
    return module


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `flwr` that does what is written into it."""
    program = tmp_path / "flwr"
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


def test_a_runs_own_settings_go_beside_ours_in_one_list(job: ModuleType) -> None:
    """Of two lists Flower takes a section, such as federation, from the second alone."""
    ours = ["output-dir='/runs'", "federation.min-sites=3"]
    assert job.joined(["federation.rounds=2"], ours) == (
        "output-dir='/runs' federation.min-sites=3 federation.rounds=2"
    )
    assert job.joined(["federation.min-sites=2"], ours) == (
        "output-dir='/runs' federation.min-sites=2"
    )


def test_a_run_has_the_settings_that_it_was_given_and_says_so(
    job: ModuleType, flwr: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The labels of the demonstration are nothing to another consortium."""
    began = flwr.with_name("began")
    flwr.write_text(
        f"""#!/bin/sh
case $1 in
    run) printf %s "$5" > {began}; echo '{{"success": true, "run-id": 7}}' ;;
    list) echo '{ROW}' ;;
esac
""",
        encoding="utf-8",
    )

    assert job.main(["data.labels='no,yes'", "lora.rank=4"]) == 0
    assert began.read_text() == "output-dir='/runs' data.labels='no,yes' lora.rank=4"
    assert f"Settings beside the app's own: {began.read_text()}\n" in capsys.readouterr().out


def test_the_demonstrations_settings_are_the_scripts(
    flwr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = flwr.with_name("said")
    flwr.write_text(f"""#!/bin/sh\nprintf '%s\\n' "$@" > {said}\n""", encoding="utf-8")
    monkeypatch.setenv("COMPOSE", str(flwr))
    subprocess.run([ROOT / "deploy" / "run.sh", "lora.rank=4"], check=True)
    lines = said.read_text(encoding="utf-8").splitlines()
    assert lines[lines.index("/app/deploy/job.py") + 1 :] == [
        "--default", "data.labels='no heart disease,heart disease'",
        "--default", "federation.min-sites=3", "lora.rank=4",
    ]  # fmt: skip


def test_a_superlink_that_accepts_a_call_and_says_nothing_is_asked_again(
    job: ModuleType, flwr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "ANSWER", 0.5)
    mark = flwr.with_name("asked")
    flwr.write_text(
        f"#!/bin/sh\nif [ -e {mark} ]; then echo '{ROW}'; else touch {mark}; exec sleep 60; fi\n",
        encoding="utf-8",
    )
    assert job.end_of("7")["status"] == "finished:completed"
    mark.unlink()
    assert job.ask("list")["error"].startswith("no answer within 0.5 s; ")


def test_a_run_that_the_superlink_does_not_know_is_a_sentence(
    job: ModuleType, flwr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "PATIENCE", 0.0)
    flwr.write_text("""#!/bin/sh\necho '{"success": true, "runs": []}'\n""", encoding="utf-8")
    with pytest.raises(SystemExit, match="does not tell about run 7: no such run"):
        job.end_of("7")
    assert job.main([]) == 1, "nor does an answer without a number begin a run"
