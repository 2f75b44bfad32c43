"""`fedapp site check`: everything that can be known before joining, in one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import fedapp
from fedapp.config import RunConfig
from fedapp.config_site import SiteFile
from fedapp.errors import FedappError
from fedapp.policy import Request, check_request, check_steps
from fedapp.preflight.certificates import check_files, utc_now
from fedapp.preflight.finding import Finding, Status, attempt
from fedapp.preflight.hours import check_hours
from fedapp.preflight.machine import check_disk, check_memory
from fedapp.preflight.network import check_neighbours, check_network

if TYPE_CHECKING:
    from pathlib import Path

    from client_app.data import SiteData
    from client_app.service.peer import HostedPeer


def check_site(config: SiteFile, run: RunConfig) -> Iterator[Finding]:
    """Yield one finding after the other.

    Parameters
    ----------
    config : SiteFile
    run : RunConfig
        Settings of a run that this site is to take part in: its task and labels say what records
        must hold, its device what is needed, its method and sizes what the policy is asked.
    """
    loaded: list[SiteData] = []
    yield attempt("data", lambda: _data(config, run, loaded))
    yield attempt("device", lambda: _device(run))
    yield check_memory(config)
    yield check_disk(config)
    yield attempt("socket", lambda: _socket(config))
    yield attempt("policy", lambda: _policy(config, run, loaded))
    yield check_hours(config.policy)
    yield attempt("base-model", lambda: _model(config, run))
    files = [path for path in (config.check.authority, *config.check.certificates) if path]
    if config.peer is not None:
        peers: list[HostedPeer] = []
        path = config.peer
        yield attempt("peer", lambda: _peer(config, path, peers))
        files += [peer.start.certificate for peer in peers]
        for peer in peers:
            yield from _training(config, peer)
            yield check_neighbours(peer.start, config.check.timeout)
    yield from check_files(files, utc_now())
    yield from check_network(config.check)


def _data(config: SiteFile, run: RunConfig, loaded: list[SiteData]) -> Finding:
    from client_app.data import load_site

    data = load_site(config.localise(run), config.name)
    loaded.append(data)
    counts = ", ".join(f"{len(records)} {split}" for split, records in data.splits.items())
    detail = f"{counts} records"
    if data.notes:
        return Finding("data", Status.WARNING, f"{detail}; {'; '.join(data.notes)}", "look at them")
    return Finding("data", Status.OK, detail)


def _device(run: RunConfig) -> Finding:
    import torch

    from client_app.device import describe_device, device_for

    device = device_for(run)
    detail = describe_device(device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        detail += f", {free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    return Finding("device", Status.OK, detail)


def _socket(config: SiteFile) -> Finding:
    from client_app.service.socket_file import check_folder

    folder = config.socket.parent
    if folder.exists():
        check_folder(folder)
        return Finding("socket", Status.OK, f"{config.socket}, for owner and group")
    return Finding("socket", Status.OK, f"{folder} will be made")


def _policy(config: SiteFile, run: RunConfig, loaded: list[SiteData]) -> Finding:
    from client_app.local_round import round_steps

    names = config.policy.coordinators
    try:
        check_request(
            config.policy,
            Request(run, 1, fedapp.__version__, names[0] if names else "", datetime.now(UTC)),
        )
        if loaded:
            check_steps(config.policy, round_steps(run, len(loaded[0].splits["train"])))
    except FedappError as error:
        finding, _, advice = error.message.partition("; ")
        return Finding("policy", Status.WARNING, finding, advice or "this run would be refused")
    return Finding("policy", Status.OK, "the run would be let in")


def _peer(config: SiteFile, path: Path, found: list[HostedPeer]) -> Finding:
    from client_app.service.peer import HostedPeer

    peer = HostedPeer.read(config, path)
    found.append(peer)
    return Finding("peer", Status.OK, f"{peer.run.method}, listens on {peer.start.listen}")


def _training(config: SiteFile, peer: HostedPeer) -> Iterator[Finding]:
    """Look at what the peer's own settings need, as for a run's; what they lack ends the peer."""
    loaded: list[SiteData] = []
    looks = {
        "data": lambda: _data(config, peer.run, loaded),
        "policy": lambda: _policy(config, peer.run, loaded),
        "base-model": lambda: _model(config, peer.run),
    }
    for name, look in looks.items():
        found = attempt(name, look)
        refused = name == "policy" and found.status is Status.WARNING
        status = Status.FAILED if refused else found.status
        yield replace(found, check=f"peer-{name}", status=status)


def _model(config: SiteFile, run: RunConfig) -> Finding:
    from client_app.sources import resolve_model

    source = resolve_model(config.localise(run).model.source)
    return Finding("base-model", Status.OK, f"{run.model.source}, SHA-256 {source.digest[:16]}...")
