"""What a hospital's SuperNode is started with: `join.toml` of its kit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from fedapp.config_provision import Address, Certifiable
from fedapp.config_section import Section, setting
from fedapp.paths import user_path
from fedapp.section_file import read_section

_SOCKET = re.compile(r"unix:/[A-Za-z0-9._/-]{1,100}")


def _socket(address: str) -> str:
    if address and not _SOCKET.fullmatch(address):
        raise ValueError("expected unix: and an absolute path, for instance unix:/run/site.sock")
    return address


class JoinConfig(Section):
    """One hospital's connection to the coordinator. Paths are relative to the file's folder."""

    site: Certifiable = setting(..., "this hospital's name, as in the coordinator's file")
    superlink: Address = setting(..., "where the coordinator is reached, HOST:PORT")
    authority: Path = setting(..., "the consortium's certificate, PEM")
    key: Path = setting(..., "this SuperNode's private key, as `fedapp site keygen` makes it")
    site_address: Annotated[str, AfterValidator(_socket)] = setting(
        "", "where the site service listens, unix:PATH; may be empty only with in-process"
    )
    in_process: bool = setting(
        False,
        "whether the coordinator's code may read this site's records itself, with no service, no "
        "policy and no audit log between them: for trials",
    )
    coordinator: str = setting(
        "", "whose SuperLink it is, for the rule `coordinators` of the site's policy",
        pattern=r"^[\w .-]{0,64}$",
    )  # fmt: skip
    runtime_port: int = setting(
        9094, "port on 127.0.0.1 for the SuperNode's own programs", ge=1, le=65535
    )


def read_join(path: Path) -> JoinConfig:
    """Read a hospital's `join.toml`.

    Raises
    ------
    ConfigError
        See `fedapp.section_file.read_section`.
    """
    config = read_section(path, JoinConfig)
    here = path.absolute().parent
    places = {field: here / user_path(getattr(config, field)) for field in ("authority", "key")}
    return config.model_copy(update=places)
