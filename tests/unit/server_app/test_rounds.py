"""The whole loop on a federation in this process."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from statistics import fmean

import numpy as np
import pytest
from fake_federation import (
    HOSPITALS,
    FakeGrid,
    Fault,
    initial_adapter,
    silent,
    with_metrics,
    with_numbers,
)
from flwr.app import Message

from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.exchange import Action
from fedapp.peft_format import load_peft
from fedapp.results import RunFolder
from server_app.app import run
from server_app.checkpoint import newest_checkpoint

Finished = Callable[..., RunFolder]
Settings = Callable[..., RunConfig]


@pytest.mark.parametrize("method", ["fedavg", "svd", "fedsvd", "subspace-reg"])
def test_a_run_leaves_everything_the_contract_names(finished: Finished, method: str) -> None:
    folder = finished(method=method)

    status = json.loads(folder.status_file.read_text())
    assert status == {"state": "completed", "error": None, "exit_code": 0, "run_id": 11}
    assert (folder.path.parent / "latest").resolve() == folder.path
    summary = json.loads(folder.summary_file.read_text())
    assert list(summary["sites"]) == sorted(HOSPITALS)
    for phases in summary["sites"].values():
        assert set(phases) == {"local-only", "received", "personal"}
    assert load_peft(folder.adapter).digest() == summary["adapter_digest"]
    assert json.loads(folder.config_file.read_text())["settings"]["method"] == method


def test_the_factors_are_the_weighted_means_of_a_plain_loop(
    finished: Finished, settings: Settings
) -> None:
    folder = finished(federation__rounds=2)

    config, grid = settings(federation__rounds=2), FakeGrid()
    model = initial_adapter(config)
    for round in (1, 2):
        updates = {
            name: site._train(_instruction(config, round), model)
            for name, site in grid.sites.items()
        }
        arrays = {name: dict(update.arrays()) for name, update in updates.items()}
        total = sum(HOSPITALS.values())
        mean = {
            key: sum(HOSPITALS[name] / total * arrays[name][key].astype(float) for name in arrays)
            for key, _ in model.arrays()
        }
        model = model.map(lambda key, _, mean=mean: mean[key].astype(np.float32))
    result = dict(load_peft(folder.adapter).arrays())
    for key, array in model.arrays():
        np.testing.assert_allclose(result[key], array, rtol=2e-6, atol=1e-7)


def test_rows_have_the_agreed_keys(finished: Finished) -> None:
    folder = finished()

    rows = folder.read_metrics()
    common = {"round", "site", "phase", "accuracy", "loss", "examples", "bytes_up", "bytes_down"}
    assert all(common | {"seconds"} <= set(row) for row in rows)
    federation = [row for row in rows if row["site"] is None]
    assert [row["round"] for row in federation] == [1, 2, 3]
    for row in federation:
        personal = [
            r["accuracy"]
            for r in rows
            if r["round"] == row["round"]
            and r["phase"] == "personal"
            and r["split"] == "validation"
        ]
        assert len(personal) == 4
        assert row["accuracy"] == pytest.approx(fmean(personal))
        for name in ("accuracy", "loss"):
            received = [
                r[name]
                for r in rows
                if (r["round"], r["phase"], r.get("split"))
                == (row["round"], "received", "validation")
            ]
            assert len(received) == 4
            assert row[f"received_{name}"] == pytest.approx(fmean(received))
        assert row["replies"] == 4
        assert row["training_seconds"] == pytest.approx(0.8)
        assert row["bytes_up"] > 0
        assert row["bytes_down"] == row["bytes_up"]
        assert "cancellation" in row
    tests = [(row["site"], row["phase"]) for row in rows if row.get("split") == "test"]
    assert len(tests) == len(set(tests)) == 12  # one row per site and phase
    assert all(row["round"] == 3 for row in rows if row.get("split") == "test")


def test_the_summary_adds_up(finished: Finished) -> None:
    summary = json.loads(finished().summary_file.read_text())

    for phase in ("local-only", "received", "personal"):
        accuracies = {site: row[phase]["accuracy"] for site, row in summary["sites"].items()}
        assert summary["mean"][phase]["accuracy"] == pytest.approx(fmean(accuracies.values()))
        worst = min(accuracies, key=accuracies.__getitem__)
        assert summary["worst"][phase]["site"] == worst
    assert summary["training_seconds"] == pytest.approx(3 * 4 * 0.2 + 4 * 0.2)
    assert summary["rounds"] == 3
    assert summary["status"] == "completed"
    assert summary["versions"]["torch"] == "2.13.0+cpu"


def test_held_out_sites_never_train_and_are_tested(finished: Finished) -> None:
    grid = FakeGrid()
    folder = finished(grid, federation__held_out="Hungary")

    assert not grid.sites["Hungary"].trained
    assert not [i for i in grid.sent if i.site == "Hungary" and i.action is Action.LOCAL_ONLY]
    summary = json.loads(folder.summary_file.read_text())
    assert set(summary["held_out"]) == {"Hungary"}
    assert set(summary["held_out"]["Hungary"]) == {"received"}
    assert "Hungary" not in summary["sites"]


def test_the_largest_sites_are_asked_first(finished: Finished) -> None:
    grid = FakeGrid()
    finished(grid, federation__rounds=1)

    order = [site for _, site in grid.trained()]
    assert order == sorted(HOSPITALS, key=lambda site: -HOSPITALS[site])


def test_two_nodes_host_four_sites(finished: Finished) -> None:
    whole = json.loads(finished(FakeGrid(), name="a").summary_file.read_text())
    shared = json.loads(finished(FakeGrid(nodes=2), name="b").summary_file.read_text())

    assert shared["adapter_digest"] == whole["adapter_digest"]


@pytest.mark.parametrize("method", ["fedavg", "svd", "fedsvd", "subspace-reg"])
def test_the_order_of_arrival_does_not_change_a_bit(finished: Finished, method: str) -> None:
    plain = finished(FakeGrid(), name="a", method=method)
    turned = finished(FakeGrid(order=lambda m: m[::-1]), name="b", method=method)

    assert load_peft(plain.adapter).digest() == load_peft(turned.adapter).digest()


def test_sampled_sites_bring_their_test_metrics_in_every_round(finished: Finished) -> None:
    grid = FakeGrid()
    folder = finished(grid, federation__fraction=0.5, federation__rounds=4)

    trained = {site for _, site in grid.trained()}
    assert [len([1 for r, _ in grid.trained() if r == round]) for round in (1, 2, 3, 4)] == [2] * 4
    summary = json.loads(folder.summary_file.read_text())
    assert {s for s, row in summary["sites"].items() if "personal" in row} == trained


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_the_received_model_is_tested_once_at_the_end(finished: Finished, fraction: float) -> None:
    grid = FakeGrid()
    finished(grid, federation__fraction=fraction)

    train = [i for i in grid.sent if i.action is Action.TRAIN]
    assert {i.splits for i in train} == {("validation",)}
    tested = {i.round for i in train if i.personal_splits == ("test",)}
    assert tested == ({3} if fraction == 1 else {1, 2, 3})
    assert {i.splits for i in grid.sent if i.action is Action.EVALUATE} == {("test",)}


def test_without_a_local_baseline_none_is_asked_for(finished: Finished) -> None:
    grid = FakeGrid()
    folder = finished(grid, federation__local_only=False)

    assert not [i for i in grid.sent if i.action is Action.LOCAL_ONLY]
    assert set(json.loads(folder.summary_file.read_text())["mean"]) == {"received", "personal"}


def test_a_site_that_misses_the_final_test_is_named(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", silent, round=3, action=Action.EVALUATE)
    folder = finished(grid)

    summary = json.loads(folder.summary_file.read_text())
    assert summary["missing"] == {"Hungary evaluate": "no reply within 0.3 s"}
    assert "received" not in summary["sites"]["Hungary"]
    assert "Hungary" in capsys.readouterr().out


@pytest.mark.parametrize("action", [Action.LOCAL_ONLY, Action.EVALUATE])
@pytest.mark.parametrize("fault", [with_metrics(loss=math.nan), with_numbers(seconds=math.inf)])
def test_a_site_with_bad_numbers_at_the_end_is_missing(
    finished: Finished, action: Action, fault: Fault
) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", fault, round=3, action=action)

    missing = json.loads(finished(grid).summary_file.read_text())["missing"]

    assert list(missing) == [f"Hungary {action}"]
    assert missing[f"Hungary {action}"].startswith("reply refused (bad-metrics): ")


def test_an_undefined_metric_is_left_out_of_rows_and_means(finished: Finished) -> None:
    grid = FakeGrid()
    grid.inject("Hungary", with_metrics(auc=math.nan), round=3, action=Action.EVALUATE)

    summary = json.loads(finished(grid).summary_file.read_text())

    assert "auc" not in summary["sites"]["Hungary"]["received"]
    assert summary["mean"]["received"]["sites"] == {"accuracy": 4, "loss": 4, "auc": 3, "f1": 4}


def test_without_the_initial_adapter_a_resumed_run_ends_without_a_baseline(
    settings: Settings, finished: Finished
) -> None:
    config, grid = settings(), FakeGrid()
    folder = finished(grid, config)
    digest = json.loads(folder.summary_file.read_text())["adapter_digest"]
    grid = FakeGrid()
    for site in grid.sites:
        grid.inject(site, silent, round=0, action=Action.INITIAL)

    run(grid, config.with_changes({"resume": str(folder.path)}), folder, 12)

    summary = json.loads(folder.summary_file.read_text())
    assert summary["adapter_digest"] == digest
    assert set(summary["missing"]) == {f"{site} local-only" for site in HOSPITALS}
    assert "no site sent the initial adapter" in summary["missing"]["Hungary local-only"]
    assert set(summary["mean"]) == {"received", "personal"}


def test_the_adapter_is_there_before_the_measurements_begin(settings: Settings) -> None:
    config, grid = settings(), FakeGrid()
    folder = RunFolder.create(config)

    def lost(messages: list[Message]) -> None:
        if messages[0].metadata.message_type == "train.local_only":
            raise ConnectionError("the link is down")

    grid.before_push = lost
    with pytest.raises(ConnectionError):
        run(grid, config, folder, 1)

    saved = newest_checkpoint(folder.checkpoint)
    assert saved.round == 3
    assert load_peft(folder.adapter).digest() == saved.strategy["adapter"].digest()


def test_traffic_is_what_was_sent_and_received(settings: Settings, finished: Finished) -> None:
    """One fp32 adapter: up once at the start and per update; down per request."""
    one = pack(initial_adapter(settings())).nbytes

    summary = json.loads(finished().summary_file.read_text())

    assert summary["bytes_up"] == one + 3 * 4 * one
    assert summary["bytes_down"] == 3 * 4 * one + 4 * one + 4 * one


def test_what_flower_does_not_take_is_no_traffic_and_known_at_once(
    settings: Settings, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = FakeGrid()
    grid.refused = {("Hungary", Action.TRAIN, 2), ("Hungary", Action.EVALUATE, 3)}
    one = pack(initial_adapter(settings())).nbytes

    started = time.monotonic()
    folder = finished(
        grid, federation__min_replies=3, federation__round_timeout=60, federation__local_only=False
    )

    assert time.monotonic() - started < 30
    rows = [row for row in folder.read_metrics() if row["site"] is None]
    assert rows[1]["missing"] == {"Hungary": "unsent"}
    assert (rows[0]["bytes_down"], rows[1]["bytes_down"]) == (4 * one, 3 * one)
    summary = json.loads(folder.summary_file.read_text())
    assert summary["bytes_down"] == (4 + 3 + 4) * one + 3 * one
    assert "Flower did not take the message" in summary["missing"]["Hungary evaluate"]


@pytest.mark.parametrize(("codec", "bits", "close"), [("bf16", 16, 0.005), ("int8", 8, 0.02)])
@pytest.mark.parametrize("method", ["fedsvd", "subspace-reg"])
def test_a_smaller_number_format_gives_nearly_the_same_model(
    finished: Finished, method: str, codec: str, bits: int, close: float
) -> None:
    folders = [
        finished(name=name, method=method, federation__codec=name, federation__rounds=2)
        for name in ("fp32", codec)
    ]

    exact, coarse = (load_peft(folder.adapter) for folder in folders)
    for name, pair in exact.pairs.items():
        product_mn, other = pair.b_mr @ pair.a_rn, coarse.pairs[name]
        difference = np.linalg.norm(product_mn - other.b_mr @ other.a_rn)
        assert 0 < difference < close * np.linalg.norm(product_mn)
    rows = [folder.read_metrics()[0] for folder in folders]  # one site's first round
    assert rows[0]["bytes_down"] == rows[1]["bytes_down"] > 0, "the model travels in fp32"
    assert rows[0]["bytes_up"] > rows[1]["bytes_up"] > 0
    if codec == "bf16":
        assert rows[1]["bytes_up"] * 32 == rows[0]["bytes_up"] * bits
    assert folders[1].read_status()["state"] == "completed"


def test_the_run_prints_its_folder_twice_and_the_table(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished()

    text = capsys.readouterr().out
    assert text.count(f"run folder: {folder.path}") == 2
    for word in [*HOSPITALS, "mean", "worst", "local-only", "received", "personal", "AUC", "F1"]:
        assert word in text


def test_a_failing_report_does_not_fail_the_run(
    finished: Finished, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: object) -> None:
        raise ValueError("no fonts")

    monkeypatch.setattr("fedapp.report.write_report", broken)
    folder = finished()

    assert folder.read_status()["state"] == "completed"
    assert "the report was not written (ValueError: no fonts)" in capsys.readouterr().out


def test_sites_do_not_learn_the_coordinators_paths(finished: Finished) -> None:
    grid = FakeGrid()
    finished(grid)

    assert {i.config.output_dir for i in grid.sent} == {""}


def test_metrics_that_are_not_finite_never_reach_the_files(finished: Finished) -> None:
    grid = FakeGrid()

    def not_a_number(instruction, reply):  # type: ignore[no-untyped-def]
        metrics = {key: {**m, "loss": math.nan} for key, m in reply.metrics.items()}
        return type(reply)(**{**reply.__dict__, "metrics": metrics})

    grid.inject("Hungary", not_a_number, round=3)
    folder = finished(grid)

    text = folder.metrics_file.read_text() + folder.summary_file.read_text()
    assert "NaN" not in text


def _instruction(config: RunConfig, round: int):  # type: ignore[no-untyped-def]
    from fedapp.exchange import Instruction

    return Instruction(Action.TRAIN, "", config, round)
