"""A peer run by its own clocks in this process, and what two drivers of one run must have alike."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from client_app.peer_process import Trainer, load_trainer
from fedapp.config import RunConfig
from fedapp.exchange import Instruction, Reply
from fedapp.gossip.ledger import LedgerEntry
from fedapp.gossip.local import LocalNodes
from fedapp.gossip.start import Start
from fedapp.report.ledgers import read_ledgers
from fedapp.results import RunFolder


def models(folder: Path) -> dict[str, bytes]:
    """The sites' newest models, bit for bit, by the name of their folders."""
    found = {}
    for site in sorted(folder.iterdir()):
        (of_run,) = site.iterdir()
        newest = max(of_run.glob("round-*.safetensors"))
        found[site.name] = _numbers(newest)
    return found


def _numbers(path: Path) -> bytes:
    data = path.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]  # without the header, which names the run


def ledgers(folder: RunFolder) -> dict[str, list[LedgerEntry]]:
    notes: list[str] = []
    found = read_ledgers(folder.ledger, notes)
    assert notes == []
    return found


def check_scored(folder: RunFolder, sites: Sequence[str], rounds: int) -> None:
    """Check that every site has heard all others in every round, scored them, and let some in."""
    found = ledgers(folder)
    assert sorted(found) == sorted(sites)
    heard = [one for entries in found.values() for entry in entries for one in entry.heard]
    assert len(heard) == len(sites) * rounds * (len(sites) - 1)
    for one in heard:
        for score in ("agreement", "calibrated", "prediction", "distance"):
            assert one.scores[score] is not None
        assert one.accepted == (one.reason == "") == (one.weight > 0)
    assert any(one.accepted for one in heard)


def run_autonomous(
    root: Path, config: RunConfig, sites: Sequence[str], patch: pytest.MonkeyPatch
) -> None:
    """Run every site's rounds by its own clock, in one process; nobody calls them."""
    one_at_a_time, work = threading.Lock(), Trainer._do  # they share this process's base model

    def do(self: Trainer, instruction: Instruction) -> Reply:
        with one_at_a_time:
            return work(self, instruction)

    patch.setattr(Trainer, "_do", do)
    (root / "settings.toml").write_text(
        "\n".join(f'"{key}" = {json.dumps(value)}' for key, value in config.to_flat().items())
    )
    asyncio.run(_autonomous(root, sites))


def check_same(coordinated: RunFolder, root: Path, sites: Sequence[str]) -> None:
    """Check that autonomous sites have the models, losses and ledgers of a coordinated run."""
    rows = coordinated.read_metrics()
    for name in sites:
        alone = RunFolder(root / name / "run")
        assert alone.read_status()["state"] == "completed"
        theirs = models(root / name / "sites")
        assert len(theirs) == 1
        assert theirs.items() <= models(coordinated.sites).items()
        losses = [row["loss"] for row in rows if row["site"] == name]
        assert [row["loss"] for row in alone.read_metrics()] == losses
        mine, whole = ledgers(alone)[name], ledgers(coordinated)[name]
        for one, other in zip(mine, whole, strict=True):
            assert one.model_dump(include={"heard", "own_weight", "missing", "own_digest"}) == (
                other.model_dump(include={"heard", "own_weight", "missing", "own_digest"})
            )


def start_of(name: str, run: str, root: Path, sites: Sequence[str]) -> Start:
    """Return what a peer in this process begins with."""
    return Start(
        name=name, run=run, certificate="", key="", authority="", store="", listen="", announce="",
        listeners=(), status_interval=1.0, members=(), neighbours=(), origins=(), gossip={},
        settings_file=str(root / "settings.toml"), state=str(root / name),
        degrees=dict.fromkeys(sites, len(sites) - 1),
    )  # fmt: skip


async def _autonomous(root: Path, sites: Sequence[str]) -> None:
    async with LocalNodes(sites, root / "stores", run=secrets.token_hex(16)) as nodes:
        await asyncio.gather(*(_peer(nodes, name, root, sites) for name in sites))


async def _peer(nodes: LocalNodes, name: str, root: Path, sites: Sequence[str]) -> None:
    start = start_of(name, nodes.run, root, sites)
    with load_trainer(start, root / "settings.toml", lambda line: None) as trainer:
        await trainer.run(nodes[name])
