"""A Flower app with fedapp's settings and run folder that does what a setting tells it, at once."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SERVER = """
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

from fedapp.config import RunConfig
from fedapp.errors import HandshakeError
from fedapp.results import RunFolder

app = ServerApp()


def log(text):
    print(time.strftime("%H:%M:%S") + "  " + text, flush=True)


@app.main()
def main(grid, context):
    config = RunConfig.from_flat(context.run_config)
    folder = RunFolder.create(config)
    folder.write_config(config, {})
    folder.write_status("running", run_id=context.run_id)
    what = config.data.text_column  # a setting that takes any text
    log(f"told to {what!r}")
    if what == "fail":
        folder.write_status("failed", "site A, round 1: labels differ", 4)
        log("error: site A, round 1: labels differ")
        raise HandshakeError("labels differ", site="A", round=1)
    if what == "crash":
        raise RuntimeError("out of luck")
    if what == "exit":
        raise SystemExit(0)
    if what == "wait":
        log("waiting")
        time.sleep(300)
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    messages = [Message(RecordDict({"x": ConfigRecord({})}), nodes[0], "train")]
    for reply in grid.send_and_receive(messages, timeout=60):
        log("client says " + str(reply.content["x"]["says"]))
    folder.report_file.write_text("<html></html>")
    folder.write_status("completed")
"""

CLIENT = """
import os

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    print("chatter of a worker")
    says = f"SAYING from {os.getcwd()}"
    return Message(RecordDict({"x": ConfigRecord({"says": says})}), reply_to=message)
"""


def write_app(folder: Path, saying: str = "hello") -> Path:
    """Write the app into ``folder``; its client answers with ``saying``."""
    for name, code in (("server_app", SERVER), ("client_app", CLIENT)):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
        (folder / name / "app.py").write_text(code.replace("SAYING", saying), encoding="utf-8")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(text.replace('"fedapp/**/*.py", ', ""), encoding="utf-8")
    return folder
