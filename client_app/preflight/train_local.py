"""`fedapp site train-local`: own records, own machine; nothing leaves, not even to the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from client_app.data import load_site
from client_app.preflight.replies import checked
from client_app.site import LocalSite
from fedapp.config import RunConfig
from fedapp.config_site import SiteFile
from fedapp.exchange import Action, Instruction
from fedapp.tasks import columns

Say = Callable[[str], None]


def train_local(config: SiteFile, run: RunConfig, say: Say) -> dict[str, Any]:
    """Train on this site's records alone with the whole run's budget and return the metrics.

    Raises
    ------
    FedappError
        With the sentence of what failed.
    """
    own = config.localise(run)
    data = load_site(own, config.name)
    say(", ".join(f"{len(records)} {split}" for split, records in data.splits.items()) + " records")
    tenth = 0

    def tell(step: int, steps: int, loss: float) -> None:
        nonlocal tenth
        if step == steps or step * 10 // steps > tenth:
            tenth = step * 10 // steps
            say(f"step {step} of {steps}, loss {loss:.4f}")

    site = LocalSite(data, watch=tell)
    initial = checked(site.execute(Instruction(Action.INITIAL, config.name, own)))
    splits = ("validation", "test")
    before = checked(
        site.execute(
            Instruction(Action.EVALUATE, config.name, own, payloads=initial.payloads, splits=splits)
        )
    )
    after = checked(
        site.execute(
            Instruction(
                Action.LOCAL_ONLY, config.name, own, payloads=initial.payloads, splits=splits
            )
        )
    )
    for split in splits:
        # A split without records has no metrics.
        first = before.metrics.get(f"received/{split}", {})
        last = after.metrics.get(f"local-only/{split}", {})
        for name in columns(own):
            if name in first and name in last:
                say(f"{split} {name}: {first[name]:.3f} untrained, {last[name]:.3f} trained")
    return {
        "records": {split: len(records) for split, records in data.splits.items()},
        "untrained": dict(before.metrics),
        "trained": dict(after.metrics),
        "numbers": dict(after.numbers),
    }
