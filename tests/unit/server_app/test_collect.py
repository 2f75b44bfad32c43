"""How an error of Flower reads: the first cause in one line, whatever another machine wrote."""

from __future__ import annotations

import pytest
from fake_federation import FakeGrid
from flwr.app import ConfigRecord, Error, Message, RecordDict

from server_app.collect import error_text

CHAIN = """\
\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=11389, ip=192.0.2.2, actor_id=81cf)
  File "/site-packages/flwr/clientapp/client_app.py", line 161, in __call__
RuntimeError: cannot serve

The above exception was the direct cause of the following exception:

\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=11389, ip=192.0.2.2, actor_id=81cf)
  File "/site-packages/flwr/simulation/ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException:
Exception ClientAppException occurred. Message: """
QUOTED = "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'"
DIED = "<class 'client_app.worker_pool.WorkerDied'>:<'"

REASONS = {
    f"{QUOTED}{CHAIN}cannot serve'>": "its client app failed (Flower error 2: cannot serve)",
    f"{QUOTED}{CHAIN}not\n  enough'>": "its client app failed (Flower error 2: not enough)",
    f"{QUOTED}{CHAIN}'>": "its client app failed (Flower error 2: no reason given)",
    "<class 'KeyError'>:<''x''>": "its client app failed (Flower error 2: 'x')",
    "Traceback: secret\nRuntimeError: gone": (
        "its client app failed (Flower error 2: RuntimeError: gone)"
    ),
    "": "its client app failed (Flower error 2: no reason given)",
    "\n \n": "its client app failed (Flower error 2: no reason given)",
    f"{DIED}it was killed'>": "its worker process died: it was killed",
    "a\x1b[2Jb\u202ec": r"its client app failed (Flower error 2: a\x1b[2Jb\u202ec)",
}


def said(reason: str) -> str:
    FakeGrid()  # what a Flower process knows of itself
    asked = Message(RecordDict({"x": ConfigRecord()}), dst_node_id=7, message_type="train")
    return error_text(Message(Error(code=2, reason=reason), reply_to=asked))


@pytest.mark.parametrize(("reason", "sentence"), REASONS.items())
def test_an_error_is_told_by_its_first_cause(reason: str, sentence: str) -> None:
    assert said(reason) == sentence


@pytest.mark.parametrize("start", ["", DIED, f"{QUOTED}{CHAIN}", "x\n"])
@pytest.mark.parametrize("rest", ["y" * 10**6, "\x00\x1b" * 10**5, "\r\n\u2028" * 10**5])
def test_it_is_one_line_of_bounded_length(start: str, rest: str) -> None:
    sentence = said(f"{start}{rest}'>")
    assert sentence.isprintable()
    assert len(sentence) < 400
