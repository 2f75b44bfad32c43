"""A Flower app that is the product's, with sites, or a merge, that misbehave as a file says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

SERVER = '''
"""The product's ServerApp, with a merge that may break."""

import json
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp

import server_app.app as product

app = ServerApp()
build = product.build_strategy


def build_broken(config):
    strategy = build(config)
    at = json.loads(Path("THE PLAN").read_text())["merge"]
    honest = strategy.merge

    def merge(round, updates):
        merged = honest(round, updates)
        return merged.map(lambda _, array: np.full_like(array, np.inf)) if round == at else merged

    strategy.merge = merge
    return strategy


@app.main()
def main(grid, context):
    product.build_strategy = build_broken
    product.main(grid, context)
'''

CLIENT = '''
"""The product's ClientApp, some of whose sites misbehave."""

import json
from pathlib import Path

from flwr.clientapp import ClientApp

import client_app.app as product
from fedapp.wire import content_to_instruction


class Faulty(ClientApp):
    def __call__(self, message, context):
        if message.metadata.message_type == "train":
            from faulty import misbehaviour  # loads torch

            plan = json.loads(Path("THE PLAN").read_text())
            instruction = content_to_instruction(message.content)
            fault = plan["sites"].get(instruction.site)
            if fault and instruction.round == plan["round"]:
                return misbehaviour.answer(fault, plan["hang"], product.app, message, context)
        return product.app(message, context)


app = Faulty()
'''

_COMPONENTS = {
    'serverapp = "server_app.app:app"': 'serverapp = "faulty.app:app"',
    'clientapp = "client_app.app:app"': 'clientapp = "faulty.client:app"',
}


class FaultyApp:
    """The app in ``folder``; `plan` says what goes wrong in its next runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._plan = folder, folder / "plan.json"
        (folder / "faulty").mkdir(parents=True)
        files = {
            "__init__": "",
            "app": SERVER.replace("THE PLAN", str(self._plan)),
            "client": CLIENT.replace("THE PLAN", str(self._plan)),
            "misbehaviour": (HERE / "misbehaviour.py").read_text(encoding="utf-8"),
        }
        for name, code in files.items():
            (folder / "faulty" / f"{name}.py").write_text(code, encoding="utf-8")
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for old, new in _COMPONENTS.items():
            assert old in text
            text = text.replace(old, new)
        start = text.index("fab-include = ")
        end = text.index("\n", start)
        text = text[:start] + 'fab-include = ["faulty/*.py"]' + text[end:]
        (folder / "pyproject.toml").write_text(text, encoding="utf-8")
        self.plan()

    def plan(
        self,
        sites: Mapping[str, str] | None = None,
        *,
        round: int = 2,
        merge: int = 0,
        hang: float = 0.0,
    ) -> None:
        """Choose the faults: none, by site in ``round``, or a merge that is not finite.

        Parameters
        ----------
        sites : mapping of str to str, optional
            A fault of `misbehaviour` by site.
        round : int
        merge : int
            The round whose merge breaks; 0: none.
        hang : float
            Seconds that a site hangs.
        """
        plan = {"sites": dict(sites or {}), "round": round, "merge": merge, "hang": hang}
        self._plan.write_text(json.dumps(plan))
