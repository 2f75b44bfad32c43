"""What a site keeps between its rounds: one private file a round on its own disk.

Nothing here is ever sent. Whoever executes round t loads the newest state of a round before t and
writes state t before the reply leaves, so that a repeat, a resumed run and a kill between writing
and sending all give the same bits, whichever process does the work.

``FOLDER/SITE/RUN/round-000003.safetensors`` holds the numbers, and the rest as JSON in the file's
header. RUN is the identity of the run, so that another run of the same name finds nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedapp.atomic import write_bytes
from fedapp.errors import ConfigError, SiteStateError
from fedapp.exchange import Instruction
from fedapp.paths import site_folder
from fedapp.state import State, Tensors, join_state, split_state

log = logging.getLogger(__name__)

FORMAT = 2
MOST_RUNS = 8
"""Runs whose states a site keeps; the ones not used for longest go."""
MOST_ROUNDS = 16
"""Rounds back to which a resume finds the state, however many checkpoints the coordinator keeps."""

_NAME = re.compile(r"round-(\d{6,})\.safetensors")
_RUN = re.compile(r"[0-9a-f]{32}")
_LEFTOVER_SECONDS = 3600.0  # a temporary file this old belongs to a process that was killed


@dataclass(frozen=True)
class Kept:
    """What was found: the state of an earlier round, or nothing (``round`` 0)."""

    round: int = 0
    state: State = field(default_factory=dict)


@dataclass(frozen=True)
class _Header:
    """What a file must be for; anything else is not this site's state."""

    format: int
    site: str
    run: str
    round: int
    layout: str


class SiteStates:
    """The states of one site in one run, for one instruction: made before its work begins.

    Parameters
    ----------
    folder : Path
        Private to the sites of this machine.
    site, run : str
        Name of the site and identity of the run.
    layout : str
        Layout digest of the adapter: a state of another model does not fit.
    """

    def __init__(self, folder: Path, site: str, run: str, layout: str) -> None:
        if not _RUN.fullmatch(run):
            raise ConfigError("the run has no identity, so nothing can be kept between its rounds")
        self._site, self._run, self._layout = site, run, layout
        self._began = time.time()
        self._of_site = site_folder(folder, site)
        self.folder = self._of_site / run

    def load(self, round: int) -> Kept:
        """Return the newest state of a round before ``round``.

        One that is damaged, or of another run, site, model or format, is named in the log, and
        nothing is returned: the state before it would bring back what was sent since.

        Raises
        ------
        SiteStateError
            If this process may not read the folder.
        """
        earlier = [number for number in self._rounds() if number < round]
        if not earlier:
            return Kept()
        newest = max(earlier)
        try:
            return Kept(newest, self._read(newest))
        except SiteStateError as error:
            log.warning(
                "site %s, round %d: %s; the site starts from zero", self._site, round, error.message
            )
            return Kept()

    def save(self, round: int, state: State, keep: int) -> None:
        """Write the state of ``round`` and remove those that no resume can ask for.

        Parameters
        ----------
        round : int
        state : State
        keep : int
            Checkpoints that the coordinator keeps. While round t runs these are t - keep to t - 1:
            the states after t - keep stay, and the newest one up to it.

        Raises
        ------
        SiteStateError
            If the disk is full or not writable; earlier states are as they were.
        """
        tensors, described = split_state(state)
        header = {
            **vars(self._header(round)),
            "state": described,
            "sha256": _digest(tensors, described),
        }
        data = save(tensors, metadata={"fedapp": json.dumps(header, allow_nan=False)})
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._of_site.chmod(0o700)
            write_bytes(self._path(round), data, mode=0o600)
        except OSError as error:
            raise self._unusable("written", error) from None
        with suppress(OSError):  # the next round tries again
            self._prune(round, keep)

    def _header(self, round: int) -> _Header:
        return _Header(FORMAT, self._site, self._run, round, self._layout)

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"

    def _rounds(self) -> list[int]:
        try:
            names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        except OSError as error:
            raise self._unusable("read", error) from None
        return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]

    def _unusable(self, what: str, error: OSError) -> SiteStateError:
        """Return the sentence for the coordinator; the path stays in this site's own log."""
        log.error("site %s: %s: %s", self._site, self.folder, error)
        return SiteStateError(
            f"what the site keeps between its rounds cannot be {what} "
            f"({error.strerror or type(error).__name__}); make room in its state folder, and let "
            "the site read and write there"
        )

    def _read(self, round: int) -> State:
        path = self._path(round)
        try:
            with safe_open(path, framework="numpy") as file:
                header = json.loads((file.metadata() or {})["fedapp"])
                for name, expected in vars(self._header(round)).items():
                    if header[name] != expected:
                        raise SiteStateError(f"{path.name} is of another {name}")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if _digest(tensors, header["state"]) != header["sha256"]:
                raise SiteStateError(f"{path.name} is damaged")
            return join_state(tensors, header["state"])
        except (
            *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError),
            SafetensorError,
        ) as error:
            raise SiteStateError(f"{path.name} cannot be read ({type(error).__name__})") from None

    def _prune(self, round: int, keep: int) -> None:
        rounds = self._rounds()
        keep = min(keep, MOST_ROUNDS)
        base = max((number for number in rounds if number <= round - keep), default=0)
        for number in rounds:
            if number < base or (number > round and self._is_of_an_earlier_life(number)):
                self._path(number).unlink(missing_ok=True)
        for path in self.folder.glob(".round-*"):
            if _written(path) < time.time() - _LEFTOVER_SECONDS:
                path.unlink(missing_ok=True)
        runs = [path for path in self._of_site.iterdir() if _RUN.fullmatch(path.name)]
        for path in sorted(runs, key=_written, reverse=True)[MOST_RUNS:]:
            shutil.rmtree(path, ignore_errors=True)

    def _is_of_an_earlier_life(self, later: int) -> bool:
        """Whether the state of a later round was there before this work began.

        Then the run was resumed and computes that round again. Written meanwhile, it says that
        this work is the one that comes late, after the coordinator's deadline.
        """
        return _written(self._path(later)) <= self._began


def site_states(instruction: Instruction, layout: str, needed_by: str = "") -> SiteStates | None:
    """Return where the site of an instruction keeps its states; None if there is no such place.

    Parameters
    ----------
    instruction : Instruction
    layout : str
        Layout digest of the adapter.
    needed_by : str
        Whose state it is, if the site must have a place.

    Raises
    ------
    ConfigError
        If it must and its operator has named no folder.
    """
    folder = instruction.state_folder
    if instruction.run and folder:
        return SiteStates(Path(folder), instruction.site, instruction.run, layout)
    if instruction.run and needed_by:
        feedback = needed_by.endswith("error-feedback")
        raise ConfigError(
            f"this site has no folder for what {needed_by} keeps between its rounds; start its "
            'SuperNode with --node-config \'site="NAME" state-folder="FOLDER"\''
            + (f", or set {needed_by} = false" if feedback else "")
        )
    return None


def _digest(tensors: Tensors, described: object) -> str:
    sha = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name in sorted(tensors):
        sha.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode())
        sha.update(tensors[name].tobytes())
    return sha.hexdigest()


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # removed meanwhile
        return math.inf
