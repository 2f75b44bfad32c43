from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_federation import FakeGrid
from flwr.app import Context, RecordDict
from flwr.supercore.run import RunNotRunningException

from fedapp.config import RunConfig
from fedapp.errors import CheckpointError, ConfigError
from fedapp.results import RunFolder
from server_app.app import main, status_of

Settings = Callable[..., RunConfig]


def _context(config: dict[str, object]) -> Context:
    return Context(
        run_id=77,
        node_id=1,
        node_config={},
        state=RecordDict(),
        run_config=config,  # type: ignore[arg-type]
    )


def test_importing_the_server_loads_no_torch() -> None:
    code = (
        "import sys, server_app.app, server_app.flower\n"
        "from fedapp.registry import METHODS, load_half\n"
        "[load_half(method.server) for method in METHODS.values()]\n"
        "bad = {'torch', 'transformers', 'peft', 'client_app', 'datasets'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_main_runs_and_resumes_what_the_settings_say(settings: Settings) -> None:
    flat = settings().to_flat()
    main(FakeGrid(), _context(flat))
    folder = RunFolder.open(Path(flat["output-dir"]) / "run")  # type: ignore[arg-type]
    digest = json.loads(folder.summary_file.read_text())["adapter_digest"]

    main(FakeGrid(), _context({**flat, "resume": str(folder.path)}))

    assert json.loads(folder.summary_file.read_text())["adapter_digest"] == digest
    assert folder.read_status()["run_id"] == 77


def test_a_bad_setting_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'lora\.rang'; did you mean"):
        main(FakeGrid(), _context({"lora.rang": 3, "output-dir": str(tmp_path)}))
    assert list(tmp_path.iterdir()) == []
    assert "error: unknown setting 'lora.rang'" in capsys.readouterr().out


def test_resuming_nothing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not the folder of a run"):
        main(FakeGrid(), _context({"resume": str(tmp_path)}))


TOLD = "the run was told to end; resume it from its newest checkpoint"


@pytest.mark.parametrize(
    ("error", "state", "code", "sentence"),
    [
        (ConfigError("x is wrong", site="A"), "failed", 2, "site A: x is wrong"),
        (KeyboardInterrupt(), "stopped", 130, TOLD),
        (SystemExit(0), "stopped", 130, TOLD),
        (RunNotRunningException(), "stopped", 130, TOLD),
        (ValueError("odd"), "failed", 1, "ValueError: odd"),
        (
            OSError(28, "No space left on device", "/runs/a/adapter"),
            *("failed", 6),
            "/runs/a/adapter cannot be read or written: No space left on device; the newest "
            "checkpoint is intact, mend this and resume",
        ),
    ],
)
def test_the_status_is_true_whatever_happens(
    settings: Settings, error: BaseException, state: str, code: int, sentence: str
) -> None:
    folder = RunFolder.create(settings())

    def work() -> None:
        with status_of(folder, 5):
            assert folder.read_status()["state"] == "running"
            raise error

    with pytest.raises(type(error)):
        work()
    assert folder.read_status() == {
        "state": state,
        "error": sentence,
        "exit_code": code,
        "run_id": 5,
    }
