"""``fedapp run``: ``flwr run`` on a private daemon, streamed, with a true exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli import daemon, flower, resources, session, settings
from fedapp.cli.console import fail, say, warn
from fedapp.cli.home import Busy, Home, locked
from fedapp.cli.signals import Interrupted, interruptible
from fedapp.cli.verdict import Verdict, judge, read_status
from fedapp.config import RunConfig
from fedapp.paths import user_path
from fedapp.report import write_report
from fedapp.results import RunFolder, State
from fedapp.run_lock import still_running

_STOPPED = "stopped from outside"


def run(
    app: Annotated[Path, typer.Argument(help="Folder of the app.")] = Path("."),
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", help="Settings: 'key=value ...' or a .toml file; may be repeated."
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Shorthand for -c method=...")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Shorthand for -c federation.rounds=...")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Shorthand for -c seed=...")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run folder; default: method and time.")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Where run folders go; default: runs/ in this directory.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Run folder to continue; its settings are used.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's and Ray's output too.")
    ] = False,
) -> None:
    """Run the federation on this machine and return a true exit code.

    Flower's daemon is started if needed; it is this project's own (private home and port) and
    sends nothing out. Ctrl-C stops the run cleanly.

    Exit codes: 0 completed; 2 settings; 3 data; 4 sites disagree, or no finite merge; 5 missing
    replies; 6 checkpoint; 130 stopped; 1 anything else.

    Example: fedapp run --method fedavg --rounds 2 -c "train.batch-size=8 data.source=my.csv"
    """
    named = {
        "method": method,
        "federation.rounds": rounds,
        "seed": seed,
        "name": name,
        "output-dir": None if output_dir is None else str(output_dir),
        "resume": None if resume is None else str(resume),
    }
    app = user_path(app).resolve()
    resolved = settings.resolve(app, config or [], named, Path.cwd())
    simulation = resources.plan(resolved, resources.count_cpus(), resources.count_gpus())
    home, folder = Home.of(app), settings.run_folder(resolved)
    overrides = home.path / "overrides.toml"
    log = session.log_file(home, folder.name)
    with interruptible():
        try:
            with locked(home.path / "run.lock", wait=False):
                settings.write_overrides(resolved, app, overrides)
                request = session.Request(app, overrides, simulation.options(), log, verbose)
                _announce(resolved, simulation, folder)
                verdict = _execute(home, request, folder)
        except Busy as busy:
            raise flower.FlowerError(
                f"another run of this project is in progress (process {busy}); wait for its end, "
                "or end it with Ctrl-C in its terminal"
            ) from None
        except Interrupted as interrupted:  # before the run began, or a second time
            verdict = Verdict(interrupted.exit_code, "interrupted")
    _conclude(verdict, folder)


def _announce(config: RunConfig, simulation: resources.Simulation, folder: Path) -> None:
    gpus = f", {simulation.gpus:g} GPU" if simulation.gpus else ""
    rounds = config.federation.rounds
    say(f"Method {config.method}, {rounds} round{'s' * (rounds != 1)}, seed {config.seed}")
    nodes = f"{simulation.nodes} nodes, over which the sites are dealt"
    say(f"Simulation: {nodes}; {simulation.cpus} CPU{gpus} each")
    say(f"Run folder: {folder}")


def _execute(home: Home, request: session.Request, folder: Path) -> Verdict:
    running, started = daemon.ensure(home)
    if started:
        say(f"Started this project's Flower daemon on 127.0.0.1:{running.port}")
    elif running.executing():
        running.end_runs(lambda: session.stop_unfinished(home))
        say("Stopped a run that an earlier command had left behind")
    _look_at(folder)
    verdict = _attempt(home, running, request, folder)
    if not verdict.begun:
        say("Ray did not start within its 30 s. Nothing had begun: the run is tried once more")
        daemon.end_ray(home)
        verdict = _attempt(home, running, request, folder)
    return verdict


def _attempt(home: Home, running: daemon.Daemon, request: session.Request, folder: Path) -> Verdict:
    current = session.Session(home, running, request, typer.echo)
    try:
        verdict = judge(current.execute(), folder, request.log)
        _mark_ended(folder, current.run_id, verdict, _ends_as(verdict))
        return verdict
    except Interrupted as interrupted:
        say("Stopping the run; again to leave at once")
        ended = running.end_runs(current.stop)
        if read_status(folder).get("state") == "completed":  # it was faster than the signal
            return judge(replace(ended, status="finished:completed"), folder, request.log)
        _mark_ended(folder, current.run_id, Verdict(interrupted.exit_code, _STOPPED), "stopped")
        return Verdict(interrupted.exit_code, "the run was stopped before its end")
    except session.DaemonLost as lost:
        daemon.end_leftovers(home)
        _mark_ended(folder, current.run_id, Verdict(lost.exit_code, _STOPPED), "stopped")
        raise


def _look_at(folder: Path) -> None:
    """See what a run to resume was doing last.

    Raises
    ------
    CheckpointError
        If a command of another project, or `flwr` itself, is at work on it.
    """
    state = RunFolder(folder).state()
    if state == "running":
        raise still_running(folder)
    if state == "interrupted":
        say("The run was interrupted: its process has gone. It continues from its checkpoint")


def _ends_as(verdict: Verdict) -> State:
    return "stopped" if verdict.exit_code == 130 else "failed"


def _mark_ended(folder: Path, run_id: str, verdict: Verdict, state: State) -> None:
    """Write how a run ended whose server half was killed, or fell with Flower, before it could."""
    status = read_status(folder)
    mine = run_id.isdigit() and status.get("run_id") == int(run_id)
    if status.get("state") == "running" and mine:
        RunFolder(folder).end_status(state, verdict.error, verdict.exit_code, int(run_id))


def _conclude(verdict: Verdict, folder: Path) -> None:
    report = folder / "report.html"
    # The server half writes it at the end of a run. What is older is of before a resumption.
    if _is_outdated(report) if report.exists() else verdict.exit_code == 0:
        _write_report(folder)
    if verdict.exit_code == 0:
        say(f"Results: {folder}")
        say(f"Next: open {report}, or `fedapp export {folder} --to my-adapter`")
        return
    resumable = any((folder / "checkpoint").glob("round-*"))
    fail(verdict.error, f"continue with `fedapp run --resume {folder}`" if resumable else "")
    raise typer.Exit(verdict.exit_code)


def _is_outdated(report: Path) -> bool:
    results = [report.with_name(name) for name in ("metrics.jsonl", "summary.json")]
    written = report.stat().st_mtime_ns
    return any(path.exists() and path.stat().st_mtime_ns > written for path in results)


def _write_report(folder: Path) -> None:
    try:
        write_report(folder)
    except Exception as error:  # the page is drawn from the results and may fail; they are there
        warn(
            f"the report was not written ({type(error).__name__}: {error}); the results are "
            f"complete, try `fedapp report {folder}` later"
        )
