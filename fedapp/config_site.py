"""The settings of a site that runs as a service: ``site.toml``, the hospital's own file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from fedapp.config import DataSection, RunConfig, Scalar
from fedapp.config_peer import Address
from fedapp.config_policy import PolicySection
from fedapp.config_section import Section, setting
from fedapp.errors import ConfigError
from fedapp.paths import user_path
from fedapp.section_file import read_section
from fedapp.text import site_name

LONGEST_SOCKET = 100
"""Most bytes of the socket's path: Linux has room for 107."""

_OWN = frozenset(
    name.replace("_", "-")
    for name in DataSection.model_fields
    if name == "source" or name.endswith("_column")
)
"""Settings of ``data`` that are the site's own, whatever a run says: what is read."""


def _own_data(data: dict[str, Scalar]) -> dict[str, Scalar]:
    unknown = sorted(set(data) - _OWN)
    if unknown:
        raise ValueError(f"'{unknown[0]}' is none of {', '.join(sorted(_OWN))}")
    if not data.get("source"):
        raise ValueError("source is missing: the file or folder with this site's records")
    return data


class LimitsSection(Section):
    """What a caller of the service may take of it."""

    max_payload_mb: float = setting(
        1024.0, "largest total of one message's payloads", "MB", gt=0, le=1e6
    )
    start_timeout: float = setting(10.0, "longest wait for a call's first message", "s", gt=0)
    chunk_timeout: float = setting(30.0, "longest wait for one chunk", "s", gt=0, le=3600)


class DialSection(Section):
    """What `fedapp site check` looks at on the way to the coordinator."""

    superlink: Address = setting("", "where the coordinator's SuperLink listens, HOST:PORT")
    authority: str = setting("", "certificate of the consortium's authority, PEM")
    certificates: tuple[str, ...] = setting((), "further certificates whose dates are checked, PEM")
    max_clock_offset: float = setting(60.0, "largest difference of clocks", "s", gt=0, le=3600)
    timeout: float = setting(10.0, "longest wait for an answer", "s", gt=0, le=600)
    min_disk_gb: float = setting(1.0, "least free space on the state folder's disk", "GB", ge=0)
    min_memory_gb: float = setting(1.0, "least memory that is available", "GB", ge=0)


class SiteFile(Section):
    """One site's own file. Relative paths are relative to the folder that it is in."""

    name: Annotated[str, AfterValidator(site_name)] = setting(..., "this site's name")
    socket: Path = setting(Path("run/site.sock"), "where the service listens: a unix socket")
    state: Path = setting(Path("state"), "folder for what the site keeps; this service's alone")
    data: Annotated[dict[str, Scalar], AfterValidator(_own_data)] = setting(
        ..., "source and columns of this site's records; the coordinator names neither"
    )
    models: dict[str, str] = setting(
        {}, "folder of each base model that is on this machine, by the name that a run gives it"
    )
    peer: Path | None = setting(
        None, "file of `fedapp peer` with settings: this service then is that training peer as well"
    )
    policy: PolicySection = Field(default_factory=PolicySection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    check: DialSection = Field(default_factory=DialSection)

    @property
    def audit(self) -> Path:
        """The log of every request and of all that left."""
        return self.state / "audit.jsonl"

    def localise(self, config: RunConfig) -> RunConfig:
        """Return a run's settings with this site's own records and folders of base models.

        A column that the site's file does not name has its default name, whatever the run says:
        who names a column chooses what is read.
        """
        defaults = RunConfig().to_flat()
        keys = {key: f"data.{key}" for key in _OWN}
        own = {full: self.data.get(key, defaults[full]) for key, full in keys.items()}
        if config.model.source in self.models:
            own["model.source"] = self.models[config.model.source]
        return config.with_changes(own)


def load_site_file(path: Path, peer: Path | None = None) -> SiteFile:
    """Read ``site.toml``.

    Parameters
    ----------
    path : Path
    peer : Path, optional
        Of the setting of that name, instead of what the file says.

    Raises
    ------
    ConfigError
        If it is missing, unreadable, or has an unknown or impossible setting.
    """
    config = read_section(path, SiteFile)
    here = path.absolute().parent
    changes: dict[str, object] = {
        "socket": here / user_path(config.socket),
        "state": here / user_path(config.state),
        "peer": peer or (here / user_path(config.peer) if config.peer else None),
        "data": {**config.data, "source": _beside(here, str(config.data["source"]))},
        "models": {name: _beside(here, folder) for name, folder in config.models.items()},
        "check": _located(here, config.check),
    }
    config = config.model_copy(update=changes)
    if len(str(config.socket).encode()) > LONGEST_SOCKET:
        raise ConfigError(
            f"{path}: setting 'socket': the path {config.socket} has more than {LONGEST_SOCKET} "
            "bytes, which no unix socket's may have; choose a shorter one"
        )
    return config


def _located(here: Path, check: DialSection) -> DialSection:
    places: Mapping[str, object] = {
        "authority": _beside(here, check.authority),
        "certificates": tuple(_beside(here, each) for each in check.certificates),
    }
    return check.model_copy(update=dict(places))


def _beside(here: Path, path: str) -> str:
    """Return a path as seen from the file's folder; embedded names and "" stay as they are."""
    return path if not path or path.startswith("embedded:") else str(here / user_path(path))
