"""`fedapp site check`, `dry-run` and `train-local` as an operator runs them."""

from __future__ import annotations

import json

import pytest
from site_desk import CONFIG, NAME, write_site
from tls_servers import Issuer, listening
from typer.testing import CliRunner

from client_app.preflight.dry_run import site_file
from client_app.preflight.synthetic import write_records
from fedapp.cli import app, toml
from fedapp.config import RunConfig
from fedapp.config_policy import PolicySection
from fedapp.config_site import LimitsSection, load_site_file
from fedapp.tasks import TASKS

MODELS = {
    "sequence-classification": "embedded:tiny-encoder",
    "causal-lm": "embedded:tiny-decoder",
    "multiple-choice": "embedded:tiny-decoder",
    "image-classification": "embedded:tiny-cnn",
    "image-segmentation": "embedded:tiny-unet",
}


def run(command, path, *more, settings=CONFIG):
    changed = {k: v for k, v in settings.to_flat().items() if v != RunConfig().to_flat()[k]}
    (path.parent / "run.toml").write_text(toml.lines(changed))
    given = ["--config", str(path), "--run", str(path.parent / "run.toml"), *more]
    return CliRunner().invoke(app, ["site", command, *given], env={"COLUMNS": "200"})


def found(result):
    return {each["check"]: each for each in json.loads(result.stdout)}


def test_check_of_a_site_that_can_join(tmp_path):
    issuer = Issuer()
    path = write_site(tmp_path)
    with listening(issuer.issue(tmp_path)) as port:
        more = f'[check]\nsuperlink = "127.0.0.1:{port}"\n'
        more += f'authority = "{issuer.write(tmp_path).name}"\nmin-memory-gb = 0.0\n'
        path.write_text(path.read_text() + more)
        result = run("check", path, "--json")
        drawn = run("check", path)

    assert result.exit_code == drawn.exit_code == 0, result.output
    findings = json.loads(result.stdout)
    assert {each["status"] for each in findings} == {"ok"}
    assert found(result)["data"]["detail"] == "18 train, 6 validation, 6 test records"
    names = [each["check"] for each in findings]
    assert set(names) == {
        "data", "device", "memory", "disk", "socket", "policy", "hours", "base-model",
        "certificates", "name", "port", "tls", "clock",
    }  # fmt: skip
    assert "Next: fedapp site dry-run" in drawn.output
    assert all(name in drawn.output for name in names)


def test_a_peers_file_is_looked_at_where_the_service_is_to_be_one(tmp_path):
    path, missing = write_site(tmp_path), tmp_path / "site-peer.toml"

    result = run("check", path, "--json", "--peer", str(missing))
    serving = CliRunner().invoke(
        app, ["site", "serve", "--config", str(path), "--peer", str(missing)]
    )

    assert (result.exit_code, serving.exit_code) == (1, 2)
    assert found(result)["peer"]["detail"] == f"the file {missing} does not exist"
    assert serving.output.count(str(missing)) == 1, "one sentence"
    assert not (tmp_path / "state").exists(), "nothing was begun"


def test_check_names_what_is_wrong(tmp_path):
    path = write_site(tmp_path, "max-rank = 1\n")
    (tmp_path / "records.csv").write_text("text,label,site\n ,ill,Bern\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    gpu = CONFIG.with_changes({"train.device": "cuda:7", "model.source": "embedded:nothing"})

    result = run("check", path, "--json", settings=gpu)

    findings = found(result)
    assert result.exit_code == 1
    assert {name for name, each in findings.items() if each["status"] == "failed"} >= {
        "data", "device", "socket", "base-model",
    }  # fmt: skip
    assert "row 1: expected text, got nothing" in findings["data"]["detail"]
    assert findings["data"]["advice"] == "fill or remove the row"
    assert (findings["policy"]["status"], findings["tls"]["status"]) == ("warning", "skipped")
    assert "rule 'max-rank'" in findings["policy"]["detail"]


def test_check_counts_both_trainings_of_a_method_with_two_models(tmp_path):
    path = write_site(tmp_path, "max-local-steps = 9\n")

    result = run("check", path, "--json", settings=CONFIG.with_changes({"method": "ditto"}))

    policy = found(result)["policy"]
    assert policy["status"] == "warning"
    assert "expected a number of steps of at most 9, got 10" in policy["detail"]


def test_train_local_says_what_it_learned_and_leaves_nothing(tmp_path):
    before = set(tmp_path.rglob("*"))
    path = write_site(tmp_path)

    result = run("train-local", path)

    assert result.exit_code == 0, result.output
    assert "18 train, 6 validation, 6 test records" in result.output
    assert "validation accuracy: " in result.output
    assert "Nothing has left this machine." in result.output
    new = {each.name for each in set(tmp_path.rglob("*")) - before}
    assert new == {"records.csv", "site.toml", "run.toml"}


def test_train_local_on_bad_records_has_their_exit_code(tmp_path):
    path = write_site(tmp_path)
    (tmp_path / "records.csv").unlink()

    result = run("train-local", path)

    assert result.exit_code == 3


@pytest.mark.parametrize("task", TASKS)
def test_made_up_records_can_be_read(tmp_path, task):
    from client_app.data import load_site

    named = {"data.labels": "background,organ"} if task == "image-segmentation" else {}
    settings = RunConfig.from_flat({"model.task": task, "model.source": MODELS[task], **named})
    data = write_records(tmp_path / "records.jsonl", settings, NAME)

    own = settings.with_changes({f"data.{key}": value for key, value in data.items()})
    loaded = load_site(own, NAME)

    assert {name: len(records) for name, records in loaded.splits.items()} == {
        "train": 36, "validation": 12, "test": 12,
    }  # fmt: skip


def test_a_step_of_a_method_without_a_coordinator_is_a_sentence(tmp_path):
    result = run(
        "dry-run", write_site(tmp_path), settings=CONFIG.with_changes({"method": "lightyear"})
    )

    assert result.exit_code == 2
    assert "method lightyear has no coordinator" in result.output


def test_train_local_of_a_site_without_records_to_validate_on(tmp_path):
    path = write_site(tmp_path, records=8)
    few = CONFIG.with_changes({"data.validation-fraction": 0.01, "data.test-fraction": 0.01})

    result = run("train-local", path, "--json", settings=few)

    assert result.exit_code == 0, result.output
    assert "records" in json.loads(result.stdout)


POLICY = """
app-versions = ["0.1", "0.2"]
coordinators = "university"
hours = "mon-fri 18:00-24:00"
time-zone = "Europe/Zurich"
methods = "svd"
algorithms = ["fedavg", "fedprox"]
base-models = ["embedded:tiny-encoder", "a, b\\u007f"]
max-rank = 4
max-rounds = 7
max-local-steps = 100
min-records = 3
per-class-metrics = true
clip-norm = 1e-07
[limits]
max-payload-mb = 0.5
start-timeout = 3.0
chunk-timeout = 4.5
"""


def test_the_service_of_a_dry_run_has_the_sites_own_rules_and_limits(tmp_path):
    config = load_site_file(write_site(tmp_path, POLICY))
    (tmp_path / "dry").mkdir()
    copy = tmp_path / "dry" / "site.toml"
    copy.write_text(site_file(config, config.data))

    dry = load_site_file(copy)

    for ours, plain in ((config.policy, PolicySection()), (config.limits, LimitsSection())):
        assert not set(ours) & set(plain), "every setting is another than by default"
    rules = config.policy.model_dump(exclude={"coordinators", "hours", "time_zone"})
    assert dry.policy == PolicySection.model_validate(rules)
    assert dry.limits == config.limits


@pytest.mark.slow
def test_a_dry_run_goes_through_a_service_of_its_own(tmp_path):
    path = write_site(tmp_path)
    (tmp_path / "records.csv").unlink()  # own records are not read

    result = run("dry-run", path, "--json", settings=CONFIG.with_changes({"method": "dysco"}))

    assert result.exit_code == 0, result.output
    timings = json.loads(result.stdout)
    assert timings["bases_bytes"] > 0
    assert timings["train_bytes"] > 0
    assert timings["leaves"]["payloads"]["adapter"]["codec"] == "fp32"
    assert not (tmp_path / "state").exists()
