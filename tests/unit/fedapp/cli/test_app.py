"""The command line as a user sees it, without Flower."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fedapp.adapter import Adapter, LoraPair
from fedapp.cli import app, daemon
from fedapp.cli.home import Home
from fedapp.config import RunConfig
from fedapp.peft_format import load_peft, save_peft
from fedapp.results import RunFolder

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def fedapp(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "trian.batch-size=8"], "did you mean 'train.batch-size'?"),
        (["-c", "train.batch-size=0"], "train.batch-size"),
        (["--method", "fedavq"], "did you mean 'fedavg'?"),
        (["--rounds", "0"], "federation.rounds"),
        (["-c", "oops"], "write key=value"),
        (["-c", "absent.toml"], "absent.toml"),
        (["--name", "a/b"], "name"),
    ],
)
def test_a_mistake_in_the_settings_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(home: Home) -> None:
        raise AssertionError("the daemon was started for settings that are wrong")

    monkeypatch.setattr(daemon, "ensure", never)
    result = fedapp("run", str(ROOT), *arguments)

    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", "/users/ada/.fedapp/overrides.toml")

    monkeypatch.setattr("fedapp.cli.settings.write_overrides", full)
    result = fedapp("run", str(ROOT))
    assert result.exit_code == 1
    assert result.stderr == (
        "error: /users/ada/.fedapp/overrides.toml: No space left on device; mend this and try "
        "again\n"
    )


def test_an_absent_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapp.cli.resources.count_gpus", lambda: 0)
    result = fedapp("run", str(ROOT), "-c", "train.device=cuda")
    assert result.exit_code == 2
    assert "no NVIDIA GPU" in result.stderr


def test_a_missing_run_to_resume_is_exit_code_6() -> None:
    assert fedapp("run", str(ROOT), "--resume", "absent").exit_code == 6


def test_config_show_explains_every_setting() -> None:
    result = fedapp("config", "show", str(ROOT), "-c", "train.batch-size=8")
    assert result.exit_code == 0
    for key in RunConfig().to_flat():
        assert f"{key} = " in result.stdout
    assert "train.batch-size = 8 records    (default 16)" in result.stdout
    assert ">= 1, <= 65536" in result.stdout
    assert "Next: " in result.stdout


def test_config_toml_is_a_settings_file(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(fedapp("config", "toml", "-c", "lora.rank=3").stdout)
    shown = fedapp("config", "show", "-c", "x.toml").stdout
    assert "lora.rank = 3    (default 8)" in shown
    assert shown.count("(default") == 1


def test_config_toml_starts_from_the_app_s_own_settings(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.config]\ndata.source = 'own.csv'\n")

    for arguments in ([], ["."], [str(tmp_path)]):
        printed = fedapp("config", "toml", *arguments, "-c", "lora.rank=3").stdout
        assert 'data.source = "own.csv"\n' in printed
        assert "lora.rank = 3\n" in printed


def test_stop_without_a_daemon_says_so() -> None:
    result = fedapp("stop", str(ROOT))
    assert result.exit_code == 0
    assert "No daemon" in result.stdout


def test_a_daemon_record_of_another_process_ends_nothing(tmp_path: Path) -> None:
    import os

    home = Home.of(ROOT)
    record = {"pid": os.getpid(), "started": "long ago", "port": 1, "build": "x"}
    (home.path / "daemon.json").write_text(json.dumps(record))
    assert "No daemon" in fedapp("stop", str(ROOT)).stdout


def test_version_names_what_computes() -> None:
    lines = fedapp("version").stdout.splitlines()
    assert lines[0].startswith("fedapp ")
    assert any(line.startswith("flwr 1.") for line in lines)


@pytest.mark.parametrize("command", ["report", "export"])
def test_a_folder_that_is_no_run_is_refused(command: str, tmp_path: Path) -> None:
    more = ["--to", "x"] if command == "export" else []
    result = fedapp(command, str(tmp_path), *more)
    assert result.exit_code == 6
    assert "not the folder of a run" in result.stderr


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    config = RunConfig.from_flat({"output-dir": str(tmp_path / "runs"), "name": "one"})
    folder = RunFolder.create(config)
    folder.write_config(config, {})
    return folder


def test_export_copies_the_adapter(run: RunFolder, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pair = LoraPair(
        rng.standard_normal((4, 2)).astype(np.float32),
        rng.standard_normal((2, 3)).astype(np.float32),
        2.0,
    )
    adapter = Adapter({"layer.query": pair})
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"]}
    save_peft(adapter, run.adapter, settings, "# card\n")

    result = fedapp("export", "runs/latest", "--to", "copy")

    assert result.exit_code == 0, result.stderr
    assert load_peft(tmp_path / "copy").digest() == adapter.digest()
    assert (tmp_path / "copy" / "README.md").read_text() == "# card\n"
    assert adapter.digest() in result.stdout
    assert "Next: PeftModel.from_pretrained" in result.stdout


def test_export_merged_is_a_model_for_plain_transformers(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    from client_app.models import load_resident

    config = RunConfig.from_flat(
        {"model.source": "embedded:tiny-encoder", "output-dir": str(tmp_path / "runs"), "name": "a"}
    )
    labels = ["well", "ill", "unclear"]
    resident = load_resident(config, labels)
    rng = np.random.default_rng(0)
    adapter = resident.parameters.read().map(
        lambda _, array: (0.3 * rng.standard_normal(array.shape)).astype(np.float32)
    )
    resident.parameters.load(adapter)
    folder = RunFolder.create(config)
    site = {"label_map": labels, "base_model_digest": resident.base_digest}
    folder.write_config(config, {}, sites={"A": site})
    save_peft(adapter, folder.adapter, resident.peft_config, "# card\n")

    result = fedapp("export", "runs/latest", "--merged", "whole", "--to", "copy")

    assert result.exit_code == 0, result.stderr
    assert load_peft(tmp_path / "copy").digest() == adapter.digest()
    assert f"Wrote {tmp_path / 'whole'}" in result.stdout
    assert 'Next: AutoModelForSequenceClassification.from_pretrained("whole")' in result.stdout
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "whole").eval()
    assert list(model.config.id2label.values()) == labels
    batch = resident.task.collate(resident.task.prepare([{"text": "chest pain", "label": 0}]))
    with torch.inference_mode():
        expected = resident.task.output(resident.model, batch)
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_export_wants_a_folder(run: RunFolder) -> None:
    result = fedapp("export", "runs/one")
    assert result.exit_code == 2
    assert "--to DIR" in result.stderr
    assert "--merged DIR" in result.stderr


def test_export_merged_without_the_site_s_half_says_what_is_missing(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "client_app.export", raising=False)

    result = fedapp("export", "runs/one", "--merged", "whole")

    assert result.exit_code == 2
    assert "needs torch" in result.stderr
    assert "fedapp[site]" in result.stderr


def test_export_before_the_end_says_why(run: RunFolder) -> None:
    result = fedapp("export", "runs/one", "--to", "copy")
    assert result.exit_code == 2
    assert "holds no adapter yet" in result.stderr


def test_report_is_written_anew(run: RunFolder) -> None:
    result = fedapp("report", "runs/one")
    assert result.exit_code == 0, result.stderr
    assert str(run.report_file) in result.stdout
    assert run.report_file.exists()
