from __future__ import annotations

import pytest

from fedapp.cli.stream import LineFilter, cause, plain, run_id

GREEN, RED, CYAN, END = "\x1b[92m", "\x1b[91m", "\x1b[36m", "\x1b[0m"

# Lines as flwr 1.42 and Ray 2.55 print them.
TRANSCRIPT = f"""\
Using SuperLink: fedapp (127.0.0.1:43095)
Successfully started run 10134543587775315627
{GREEN}INFO {END}:      Starting Flower Simulation
\x1b[93mWARNING {END}:   Since flwr 1.32, default simulated SuperNodes changed from 10 to 2.
Successfully installed fedapp to /there/.fedapp/apps/fedapp.fedapp.0.1.0.180b869c.
+ 17:04:55  run folder: /runs/x
/site-packages/ray/_private/worker.py:2051: FutureWarning: Tip: In future versions of Ray, ...
  warnings.warn(
{CYAN}(ClientAppActor pid=10850){END} client here
(raylet) Some workers are slow
(pid=13049) [mutex.cc : 1954] RAW: Check failed
2026-11-29 16:00:00,123\tINFO worker.py:1942 -- Started a local Ray instance.
+ 17:05:01  round 1/1 · 4 updates merged
{RED}ERROR {END}:     An exception was raised when processing a message by RayBackend
{RED}ERROR {END}:     {CYAN}ray::ClientAppActor.run(){END} (pid=1, ip=192.0.2.2)
                  ^^^^^^
  File "/site-packages/flwr/clientapp/client_app.py", line 161, in __call__
    return self._registered_funcs[full_name](message, context)
ValueError: client bad

The above exception was the direct cause of the following exception:

{CYAN}ray::ClientAppActor.run(){END} (pid=11389, ip=192.0.2.2, actor_id=81cf)
  File "/site-packages/flwr/simulation/ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException: {END}
Exception ClientAppException occurred. Message: client bad
{RED}ERROR {END}:     Traceback (most recent call last):
  File "/site-packages/flwr/vce_api.py", line 132, in worker
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(ClientAppException): {CYAN}ray::ClientAppActor.run(){END} (pid=1)
  File "/site-packages/flwr/simulation/ray_actor.py", line 65, in run
flwr.clientapp.client_app.ClientAppException: {END}
Exception ClientAppException occurred. Message: client bad
+ 17:05:09  round 1/1 · asking again
+ Test metrics of the final models
+ ┏━━━━━━┳━━━━━┓
+ │ mean │ 0.7 │
17:05:10  error: site X, round 1: it is bad
{RED}ERROR {END}:     Simulation raised an exception
Traceback (most recent call last):
  File "/site-packages/flwr/simulation/app.py", line 337, in run_simulation_process
    simulation_result = _run_simulation(
                        ^^^^^^^^^^^^^^^^
fedapp.errors.HandshakeError: site X, round 1: it is bad
{RED}ERROR {END}:     Exit Code: 700

An unhandled exception occurred when running the simulation.

For more information, visit: <https://flower.ai/docs/>
{GREEN}INFO {END}:      {END}
"""


def test_only_our_own_lines_are_shown() -> None:
    kept = LineFilter()
    expected = [line[2:] for line in TRANSCRIPT.splitlines() if line.startswith("+ ")]

    shown = [
        line
        for line in (text.removeprefix("+ ") for text in TRANSCRIPT.splitlines())
        if kept.keeps(line)
    ]

    assert [line for line in shown if line.strip()] == expected


def test_an_unknown_line_is_shown() -> None:
    assert LineFilter().keeps("something a library has to say")


def test_our_lines_are_shown_even_within_a_traceback() -> None:
    kept = LineFilter()
    assert not kept.keeps("Traceback (most recent call last):")
    assert not kept.keeps("KeyError: 'x'")
    assert kept.keeps("12:00:00  round 2/3 · waiting for the sites")
    assert kept.keeps("what a library has to say")


def test_colours_do_not_hide_the_run_id() -> None:
    assert run_id(f"{GREEN}Successfully started run 123{END}") == "123"
    assert run_id("run 123") == ""
    assert plain(f"{RED}x{END}") == "x"


@pytest.mark.parametrize("text", ["Accuracy: 0.7", "cleveland: done"])
def test_lines_with_a_colon_are_not_taken_for_exceptions(text: str) -> None:
    assert LineFilter().keeps(text)


def test_why_the_simulation_broke_is_found() -> None:
    line = f"{GREEN}ERROR {END}:     An exception occured!! The current node timed out."
    assert cause(line) == "The current node timed out."
    assert cause("ERROR :     Simulation raised an exception") == ""
