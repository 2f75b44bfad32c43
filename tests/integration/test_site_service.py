"""`fedapp site serve` as a process: killed, told to end, and asked again."""

from __future__ import annotations

import subprocess
import threading
import time

import numpy as np
import pytest
from desk import COMMAND
from hosted_peers import ledger_of, run_of, write_hosted, write_settings
from peers import PeerProcesses
from site_desk import CONFIG, NAME, write_site
from site_processes import SiteProcess

from client_app.service.remote import RemoteSite
from fedapp.audit import verify
from fedapp.exchange import Action, Instruction

pytestmark = pytest.mark.chaos

LONG = CONFIG.with_changes({"train.local-epochs": 40, "federation.round-timeout": 300.0})


def ask(action, payloads=None, config=LONG):
    return Instruction(action, NAME, config, 1, payloads=payloads or {}, run="0c" * 16)


def test_a_service_that_is_killed_in_training_costs_a_repeat_and_no_bit(tmp_path):
    with SiteProcess(write_site(tmp_path)) as service:
        remote = RemoteSite(service.address)
        initial = remote.execute(ask(Action.INITIAL)).payloads
        got = []
        asked = ask(Action.TRAIN, initial)
        thread = threading.Thread(target=lambda: got.append(remote.execute(asked)))
        thread.start()
        service.wait_for_step(1)
        service.kill()
        service.start()
        thread.join(200)
        code, seconds, output = service.terminate()
    with SiteProcess(write_site(tmp_path / "other")) as service:
        undisturbed = RemoteSite(service.address).execute(asked)

    assert got[0].failure is None
    assert np.array_equal(got[0].payloads["adapter"].array, undisturbed.payloads["adapter"].array)
    assert (code, seconds < 10) == (0, True), output
    assert f"{NAME} has ended; audit log " in output
    events = verify(tmp_path / "state" / "audit.jsonl").events
    assert (events["began"], events["ended"], events["asked"]) == (2, 1, 3)


def test_sigterm_in_a_long_training_ends_within_ten_seconds(tmp_path):
    endless = LONG.with_changes({"train.local-epochs": 100000})
    with SiteProcess(write_site(tmp_path)) as service:
        remote = RemoteSite(service.address, patience=1.0)
        initial = remote.execute(ask(Action.INITIAL)).payloads
        got = []
        asked = ask(Action.TRAIN, initial, endless)
        thread = threading.Thread(target=lambda: got.append(remote.execute(asked)))
        thread.start()
        service.wait_for_step(1)
        code, seconds, output = service.terminate()
        thread.join(60)

    assert (code, seconds < 10) == (0, True), output
    assert got[0].failure.kind == "SiteUnavailable"
    assert not service.socket.exists()


def test_an_operator_calls_off_a_long_training_and_the_service_goes_on(tmp_path):
    path = write_site(tmp_path)
    command = [*COMMAND, "site", "cancel", "--config", str(path)]
    endless = LONG.with_changes({"train.local-epochs": 100000})
    with SiteProcess(path) as service:
        remote = RemoteSite(service.address)
        initial = remote.execute(ask(Action.INITIAL)).payloads
        idle = subprocess.run(command, capture_output=True, text=True)
        got = []
        asked = ask(Action.TRAIN, initial, endless)
        thread = threading.Thread(target=lambda: got.append(remote.execute(asked)))
        thread.start()
        service.wait_for_step(1)
        done = subprocess.run(command, capture_output=True, text=True)
        thread.join(30)
        again = remote.execute(ask(Action.INITIAL))
        service.terminate()
    away = subprocess.run(command, capture_output=True, text=True)

    assert (idle.returncode, idle.stdout) == (0, "nothing to call off: the service is idle\n")
    assert done.returncode == 0
    assert done.stdout.startswith("called off: train of round 1, step "), done
    assert got[0].failure.kind == "TaskCancelled"
    assert again.failure is None
    events = verify(tmp_path / "state" / "audit.jsonl").events
    assert (events["asked"], events["cancelled"], events["answered"]) == (3, 1, 3)
    assert (away.returncode, away.stdout) == (1, "")
    assert away.stderr.startswith("error: the site's service is not running"), away


def test_a_mistake_in_the_file_is_one_sentence_and_exit_code_2(tmp_path):
    path = write_site(tmp_path, "max-rank = 0\n")

    done = subprocess.run(
        [*COMMAND, "site", "serve", "--config", str(path)], capture_output=True, text=True
    )

    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}: setting 'policy.max-rank'")
    assert done.stderr.count("\n") == 1


def test_services_that_are_peers_end_in_their_training_and_go_on(tmp_path):
    names, rounds = ("Cleveland", "Hungary"), 3
    with PeerProcesses(tmp_path, names) as sites:
        longer = {"train.local-epochs": 100, "p2p.gather-timeout": 300.0}
        write_settings(sites, **{"federation.rounds": rounds, **longer})
        files = {name: write_hosted(sites, name) for name in names}
        with SiteProcess(files["Cleveland"]) as one, SiteProcess(files["Hungary"]) as other:
            for file in files.values():
                wait_for(lambda file=file: run_of(file).metrics_file.exists())  # round 1 is over
            stopped = [one.terminate(), other.terminate()]
            for code, seconds, output in stopped:
                assert (code, seconds < 10) == (0, True), output
            assert {run_of(file).read_status()["state"] for file in files.values()} == {"stopped"}

            for process in (one, other):
                process.start()
            for file in files.values():
                wait_for(lambda file=file: run_of(file).read_status()["state"] == "completed")
            ended = [one.terminate(), other.terminate()]

    for (code, _, output), (name, file) in zip(ended, files.items(), strict=True):
        assert code == 0, output
        assert "goes on after round" in output
        assert [entry.round for entry in ledger_of(file, name)] == list(range(1, rounds + 1))


def wait_for(condition, seconds=600.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
