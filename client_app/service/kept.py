"""The last result on the site's disk, for a message that comes a second time.

Its ClientApp may be killed, or the line to the coordinator break, after the work is done: the
coordinator then asks again, and the site must not train again. A message of another round or run
says that the coordinator has the result, and the next result takes the place of the last. What was
made under another policy, which may have withheld less, is never sent.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from client_app.service.answer import Answer
from client_app.service.payloads import Bytes
from fedapp.atomic import write_bytes
from fedapp.config_policy import PolicySection
from fedapp.exchange import Action, Instruction

log = logging.getLogger(__name__)

FORMAT = 2
KEPT = frozenset({Action.TRAIN, Action.LOCAL_ONLY})
"""Actions whose result is kept: those that take long."""
_LONGEST_HEAD = 16 * 2**20  # bytes


class KeptResult:
    """One file; written by the one thread that works.

    Parameters
    ----------
    folder : Path
        Private to the site.
    policy : PolicySection
        The site's, as it is now.
    """

    def __init__(self, folder: Path, policy: PolicySection) -> None:
        self.path = folder / "result"
        self._policy = hashlib.sha256(policy.model_dump_json().encode()).hexdigest()

    def save(self, task: str, instruction: Instruction, answer: Answer) -> None:
        """Keep an answer in the place of the last one; raises OSError if there is no room."""
        head = {
            "format": FORMAT,
            "task": task,
            "policy": self._policy,
            "run": instruction.run,
            "round": instruction.round,
            "header": answer.header,
            "sizes": [[name, array.nbytes] for name, array in answer.payloads.items()],
            "sha256": _digest(answer.header, answer.payloads),
        }
        pieces = [
            json.dumps(head).encode(),
            b"\n",
            *(a.tobytes() for a in answer.payloads.values()),
        ]
        write_bytes(self.path, b"".join(pieces), mode=0o600)

    def load(self, task: str) -> Answer | None:
        """Return the answer to a task, if it is kept and undamaged."""
        try:
            with self.path.open("rb") as stream:
                head = json.loads(stream.readline(_LONGEST_HEAD))
                if head["format"] != FORMAT or head["task"] != task:
                    return None
                if head["policy"] != self._policy:
                    return None
                payloads = {
                    name: np.frombuffer(stream.read(size), np.uint8) for name, size in head["sizes"]
                }
            if _digest(head["header"], payloads) != head["sha256"]:
                raise ValueError("its digest is of other content")
            return Answer(head["header"], payloads)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("%s cannot be used (%s); the task is done again", self.path, error)
            return None

    def acknowledge(self, instruction: Instruction) -> None:
        """Remove the result if ``instruction`` is of another round or run, see above.

        A handshake names no run: a coordinator that was killed begins with one, and may then ask
        for the very result.
        """
        if not instruction.run:
            return
        try:
            with self.path.open("rb") as stream:
                head = json.loads(stream.readline(_LONGEST_HEAD))
            if (head["run"], head["round"]) != (instruction.run, instruction.round):
                self.path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("%s cannot be read: %s", self.path, error)


def _digest(header: str, payloads: Mapping[str, Bytes]) -> str:
    sha = hashlib.sha256(header.encode())
    for name, array in payloads.items():
        sha.update(f"{name} {array.nbytes}".encode())
        sha.update(array.data)
    return sha.hexdigest()
