"""Faults of data, sites, updates, merges and disks in real runs, asserted from outside.

One federation of the tiny encoder is disturbed in its second round in every way; its first round
is never lost, and without the fault it ends as one that nothing ever happened to.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from cgroups import little_memory
from desk import Desk
from disks import tmpfs
from faulty_app import FaultyApp
from misbehaviour import OUT_OF_MEMORY, SECRET
from verdicts import assert_one_sentence, contents

pytestmark = pytest.mark.slow

SETTINGS = {
    "method": "svd",
    "model.source": "embedded:tiny-encoder",
    "lora.rank": 64,
    "data.max-examples": 24,
    "train.batch-size": 4,
    "train.threads": 1,
    "train.device": "cpu",
    "federation.rounds": 3,
    "federation.max-round-retries": 1,
    "federation.local-only": "false",
    "federation.keep-checkpoints": 9,
}


class Ward:
    """The federation: its home, its app, and how it is run."""

    def __init__(self, root: Path) -> None:
        self.desk = Desk(root)
        self.app = FaultyApp(root / "ward")
        self.runs = self.desk.here / "runs"

    def run(self, name: str, **changes: object) -> CompletedProcess[str]:
        """Start a new run; keyword arguments use ``__`` for dots."""
        given = {key.replace("__", ".").replace("_", "-"): v for key, v in changes.items()}
        options = " ".join(f"{key}={value}" for key, value in {**SETTINGS, **given}.items())
        return self.desk.fedapp("run", self.app.folder, "--name", name, "-c", options)

    def resume(self, folder: Path, *arguments: str) -> CompletedProcess[str]:
        return self.desk.fedapp("run", self.app.folder, "--resume", folder, *arguments)

    def copy(self, name: str, of: str) -> Path:
        return Path(shutil.copytree(self.runs / of, self.runs / name))


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    made = Ward(tmp_path_factory.mktemp("ward"))
    yield made
    made.desk.fedapp("stop", made.app.folder)


@pytest.fixture(autouse=True)
def no_faults(ward: Ward) -> None:
    """What a test plans is over with it."""
    ward.app.plan()


@pytest.fixture(scope="module")
def clean(ward: Ward) -> Path:
    """The folder of a run that nothing happened to."""
    ward.app.plan()
    done = ward.run("clean")
    assert done.returncode == 0, done.stdout + done.stderr
    return ward.runs / "clean"


@pytest.fixture(scope="module")
def disturbed(ward: Ward) -> CompletedProcess[str]:
    """A run that lost too many updates in round 2, as ``runs/disturbed``."""
    ward.app.plan({"Hungary": "nan"})
    return ward.run("disturbed")


def failed_as(folder: Path, sentence: str, code: int) -> None:
    status = read(folder / "status.json")
    assert (status["state"], status["error"], status["exit_code"]) == ("failed", sentence, code)


def read(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())


# ---- data and targets: before round 1 -----------------------------------------------------------

GOOD = "".join(
    f"{site},note {i} of {site} {'fine' if i % 2 else 'pain'},{'well' if i % 2 else 'ill'}\n"
    for site in ("Essen", "Faro")
    for i in range(12)
)
HOSPITALS = (
    "site,text,label\n"
    + GOOD
    + "".join(f"Aberdeen,note {i} of a,{'unclear' if i == 4 else 'ill'}\n" for i in range(12))
    + "".join(f"Bergen,note {i} of b,ill\n" for i in range(12))
    + "".join(f"Cork,note {i} of b,ill\n" for i in range(6))
    + "Dublin,note 1 of d,ill\nDublin,note 2 of d,well\n"
)


def test_every_bad_hospital_is_named_by_one_run(ward: Ward, tmp_path: Path) -> None:
    """A label outside the map, one class, no example left, an empty split."""
    (path := tmp_path / "notes.csv").write_text(HOSPITALS)

    done = ward.run("hospitals", data__source=path, data__labels="well,ill", data__max_examples=0)

    sentence = assert_one_sentence(
        done, 3, "site Aberdeen: notes.csv, column 'label', row 29: a value of 7 characters is not "
        "in data.labels; correct the row", "other problems at Bergen, Cork, Dublin, see above",
    )  # fmt: skip
    for words in (
        "site Bergen: the training records all carry one label: expected at least 2 labels",
        "site Cork: zero examples are left in notes.csv: expected at least 1, but all 6 of its",
        "site Dublin: the validation split is empty: expected at least 1 record, got 0 of the "
        "site's 2; add records",
    ):
        assert f"warning: {words}" in done.stdout
    assert "unclear" not in done.stdout + done.stderr
    assert not list((ward.runs / "hospitals").glob("checkpoint/round-*"))
    failed_as(ward.runs / "hospitals", sentence, 3)


FILES = {
    "missing column": (
        b"site,note,label\nEssen,fine,well\n",
        "notes.csv: expected a column 'text', got 3 columns of other names; name your columns",
    ),
    "wrong encoding": (
        "site,text,label\nEssen,fine,well\nEssen,fi\xe8vre,ill\n".encode("latin-1"),
        "notes.csv, line 3: expected UTF-8 text, byte 40 is in another encoding; save it as UTF-8",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_told_once(ward: Ward, tmp_path: Path, name: str) -> None:
    content, words = FILES[name]
    (path := tmp_path / "notes.csv").write_bytes(content)

    done = ward.run(folder := name.replace(" ", "-"), data__source=path)

    sentence = assert_one_sentence(done, 3, words, "(the same at node 1")
    assert done.stdout.count(words) == 0
    failed_as(ward.runs / folder, sentence, 3)


def test_tied_weights_cannot_be_a_target(ward: Ward) -> None:
    done = ward.run(
        "tied",
        model__source="embedded:tiny-decoder", model__task="causal-lm", lora__targets="lm_head",
        data__source="embedded:instructions",
    )  # fmt: skip

    sentence = assert_one_sentence(
        done, 2, "site Cleveland: lora.targets names 'lm_head', but the weight of 'lm_head' is "
        "tied to another module's", "name linear layers such as",
    )  # fmt: skip
    failed_as(ward.runs / "tied", sentence, 2)


# ---- sites and updates: in round 2 --------------------------------------------------------------

# fault -> what the log says of the site
CROWD = {
    "nan": "update refused (non-finite): array '",
    "inf": "must be finite, got -inf at [0, 0]",
    "too large": "must hold magnitudes of at most 1e+06, got 3e+06",
    "shape": "update refused (wrong-shape): array '",
    "rank": "must have rank 64, got 63; lora.rank must be equal at every site",
    "names": "update refused (wrong-layout): tensor '",
    "codec": "update refused (wrong-codec): the update must be encoded as fp32, got bf16",
    "dtype": "payload 'adapter' is not one flat array of bytes",
    "digest": "update refused (wrong-digest): ",
    "oversized": "update refused (oversized): the update must have at most 2000000 bytes, got 4",
    "round": "update refused (wrong-round): the update must be of round 2, got 1",
    "zero weight": "update refused (bad-weight): the update's weight must be positive and finite",
    "negative weight": "update refused (bad-weight): the update's weight must be positive and",
    "nan loss": "reply refused (bad-metrics): 'loss' of the metrics of",
    "nothing": "update refused (empty): the update holds no array",
    "raises in its app": "its client app failed (Flower error 2: cannot serve)",
    "raises in training": "ValueError at client_app/",
    "hangs": "no reply within 40 s",
}


def test_a_round_goes_on_without_those_that_misbehave(ward: Ward) -> None:
    """Each is named in the log with its reason, none of them weighs in, all may come back."""
    good = 2
    sites = [f"site-{number:02d}" for number in range(1, len(CROWD) + good + 1)]
    faults = dict(zip(sites, CROWD, strict=False))
    ward.app.plan(faults, hang=42)

    done = ward.run(
        "crowd",
        data__partition="iid", data__sites=len(sites), federation__min_replies=good,
        federation__round_timeout=40, federation__max_payload_mb=2, data__max_examples=12,
        train__max_steps=1,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for site, fault in faults.items():
        (line,) = [one for one in lines if f"warning: site {site}, round 2: " in one]
        assert CROWD[fault] in line, (fault, line)
    for words in ("Traceback", SECRET, '.py"'):
        assert words not in done.stdout
    rows = [json.loads(line) for line in (ward.runs / "crowd/metrics.jsonl").open()]
    replies = {row["round"]: row["replies"] for row in rows if "replies" in row}
    assert replies == {1: len(sites), 2: good, 3: len(sites)}
    assert read(ward.runs / "crowd/status.json")["state"] == "completed"


def test_too_few_updates_end_the_run_and_keep_the_model(
    ward: Ward, clean: Path, disturbed: CompletedProcess[str]
) -> None:
    folder = ward.runs / "disturbed"
    sentence = assert_one_sentence(
        disturbed, 5, "round 2: 3 of 4 sites sent a valid update, at least 4 needed; the previous "
        "model is kept", "site Hungary: update refused (non-finite): array '", "got nan at [0, 0]",
        "resume with a lower federation.min-replies",
    )  # fmt: skip
    assert f"next: continue with `fedapp run --resume {folder}`" in disturbed.stderr
    failed_as(folder, sentence, 5)
    assert sorted(path.name for path in folder.glob("checkpoint/*")) == [
        "round-000000", "round-000001",
    ]  # fmt: skip
    for round in ("round-000000", "round-000001"):
        numbers = Path("checkpoint") / round / "state.safetensors"
        assert (folder / numbers).read_bytes() == (clean / numbers).read_bytes()


def test_a_merge_that_is_not_finite_is_refused(
    ward: Ward, disturbed: CompletedProcess[str]
) -> None:
    before = contents((folder := ward.copy("merge", "disturbed")) / "checkpoint")
    ward.app.plan(merge=2)

    done = ward.resume(folder)

    sentence = assert_one_sentence(
        done, 4, "round 2: after the merge array '", "must be finite, got inf at [0, 0]; the "
        "previous model is kept", "sent the largest numbers (up to ",
    )  # fmt: skip
    failed_as(folder, sentence, 4)
    assert contents(folder / "checkpoint") == before


def test_a_site_that_is_killed_ends_the_run_by_name_and_loses_nothing(
    ward: Ward, clean: Path, disturbed: CompletedProcess[str]
) -> None:
    """And then: a half-written checkpoint is passed over, and the end is as if nothing was."""
    before = contents((folder := ward.copy("killed", "disturbed")) / "checkpoint")
    ward.app.plan({"Hungary": "is killed"})

    done = ward.resume(folder)

    sentence = assert_one_sentence(
        done, 5, "round 2: 3 of 4 sites sent a valid update, at least 4 needed; the previous "
        "model is kept",
        "site Hungary: its worker process died: it was killed, or it crashed. Mend",
    )  # fmt: skip
    failed_as(folder, sentence, 5)
    assert contents(folder / "checkpoint") == before

    ward.app.plan()
    half = shutil.copytree(folder / "checkpoint/round-000001", folder / "checkpoint/round-000002")
    os.truncate(half / "state.safetensors", 1000)
    again = ward.resume(folder)

    assert (again.returncode, again.stderr) == (0, ""), again.stdout + again.stderr
    assert "checkpoint round-000002 is damaged: state.safetensors has 1000 bytes" in again.stdout
    assert "resumed after round 1 of 3" in again.stdout
    digests = [read(run / "summary.json")["adapter_digest"] for run in (folder, clean)]
    assert digests[0] == digests[1]
    weights = "adapter/adapter_model.safetensors"
    assert (folder / weights).read_bytes() == (clean / weights).read_bytes()


def test_a_site_that_the_kernel_kills_for_lack_of_memory_is_told_as_that(
    ward: Ward, disturbed: CompletedProcess[str]
) -> None:
    before = contents((folder := ward.copy("memory", "disturbed")) / "checkpoint")
    with little_memory() as group:
        ward.app.plan({"Hungary": f"{OUT_OF_MEMORY}{group}"})
        done = ward.resume(folder)

    sentence = assert_one_sentence(
        done, 5, "site Hungary: its worker process died: the kernel killed a process of this "
        "machine for lack of memory. Mend",
    )  # fmt: skip
    failed_as(folder, sentence, 5)
    assert contents(folder / "checkpoint") == before


# ---- disks and checkpoints ----------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB in memory; it needs the right to mount one."""
    with tmpfs(tmp_path / "disk") as place:
        yield place


def test_a_full_disk_is_one_sentence(
    ward: Ward, disturbed: CompletedProcess[str], small_disk: Path
) -> None:
    """What the run needs to begin fits, the checkpoint of round 2 does not: a real ENOSPC."""
    folder = small_disk / "full"
    shutil.copytree(ward.runs / "disturbed", folder)
    before = contents(folder / "checkpoint")
    room = os.statvfs(small_disk)
    with (small_disk / "filler").open("wb") as filler:
        filler.write(bytes(room.f_bavail * room.f_bsize - 64 * 1024))

    done = ward.resume(folder)

    sentence = assert_one_sentence(
        done, 6, f"round 2: {folder}/checkpoint cannot be written: No space left on device; "
        "earlier checkpoints are intact, make room and resume",
    )  # fmt: skip
    failed_as(folder, sentence, 6)
    assert contents(folder / "checkpoint") == before


def test_without_a_whole_checkpoint_nothing_is_resumed(
    ward: Ward, disturbed: CompletedProcess[str]
) -> None:
    folder = ward.copy("corrupt", "disturbed")
    numbers = folder / "checkpoint/round-000001/state.safetensors"
    data = bytearray(numbers.read_bytes())
    data[-9] ^= 1
    numbers.write_bytes(data)
    (folder / "checkpoint/round-000000/manifest.json").unlink()
    before = contents(folder / "checkpoint")

    done = ward.resume(folder)

    sentence = assert_one_sentence(
        done, 6, f"no usable checkpoint in {folder}/checkpoint (all are broken: round-000001, "
        "round-000000); start a new run",
    )  # fmt: skip
    assert "checkpoint round-000001 is damaged: state.safetensors has " in done.stdout
    assert "checkpoint round-000000 is incomplete: no manifest.json" in done.stdout
    failed_as(folder, sentence, 6)
    assert contents(folder / "checkpoint") == before


def test_a_refused_resume_leaves_a_completed_run_completed(ward: Ward, clean: Path) -> None:
    before = contents(clean)

    done = ward.resume(clean, "-c", "lora.alpha=3")

    sentence = assert_one_sentence(
        done, 6, "setting 'lora.alpha' is 3.0, but the run to resume has 16.0"
    )
    status = read(clean / "status.json")
    assert (status["state"], status["error"], status["exit_code"]) == ("completed", None, 0)
    assert status["refused"]["error"] == sentence  # type: ignore[index]
    assert {**contents(clean), "status.json": ""} == {**before, "status.json": ""}
