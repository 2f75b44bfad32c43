"""A site whose process may have no more memory fails in words, and works when it may."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is not kept elsewhere"),
]

SCRIPT = """
import json, resource
from pathlib import Path
from client_app.hosting import hosted_sites
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction

config = RunConfig.from_flat({
    "method": "fedavg", "model.source": "embedded:tiny-encoder", "train.device": "cpu",
    "train.batch-size": 4096, "train.max-steps": 1,
})
site = hosted_sites(config, {"partition-id": 0, "num-partitions": 4})["Cleveland"]
initial = site.execute(Instruction(Action.INITIAL, "Cleveland", config))
train = Instruction(
    Action.TRAIN, "Cleveland", config, 3, payloads=initial.payloads, splits=("validation",)
)
free, said = resource.RLIM_INFINITY, []
for more in (None, 2**20, None):  # at first every thread starts and every library is loaded
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = free if more is None else now + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, free))
    failure = site.execute(train).failure
    said.append(failure and [failure.kind, failure.message])
print(json.dumps(said))
"""


def test_it_is_told_and_the_process_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=500, check=True
    )
    before, limited, after = json.loads(done.stdout.splitlines()[-1])

    assert limited[0] == "TrainingError"
    assert limited[1].startswith("site Cleveland, round 3: this process was given no more memory")
    assert before is None
    assert after is None
