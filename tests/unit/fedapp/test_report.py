"""The report of a run: structure, honesty, escaping, determinism, missing pieces."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import HOSPITALS, write_run
from scipy import stats

from fedapp.config import RunConfig
from fedapp.errors import FedappError
from fedapp.report import write_report
from fedapp.results import RunFolder, State
from fedapp.run_lock import RunLock


class Page(HTMLParser):
    """A parsed page; a tag that is not closed properly fails at once."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: dict[str, list[list[str]]] = {}
        self.words: list[str] = []
        self._open: list[str] = []
        self._table = ""
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "br"}:  # void elements of HTML
            self._open.append(tag)
        if tag == "table":
            self._table = dict(attrs).get("id") or dict(attrs).get("class") or "rounds"
            self.rows[self._table] = []
        elif tag == "tr":
            self.rows[self._table].append([])
        elif tag in ("th", "td"):
            self.rows[self._table][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag
        if tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.words.append(data)
        if self._table and {"td", "th"} & set(self._open):
            self.rows[self._table][-1][-1] += data

    def count(self, tag: str, **attributes: str) -> int:
        return sum(
            name == tag and all(found.get(k.rstrip("_")) == v for k, v in attributes.items())
            for name, found in self.tags
        )

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def row(self, first: str, table: str = "results") -> list[str]:
        return next(row for row in self.rows[table] if row and row[0] == first)


def page_of(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def edit_rows(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        tmp_path_factory.mktemp("runs") / "demo",
        settings={"train.learning-rate": 1e-3},
        held_out=("Switzerland",),
    )


@pytest.fixture(scope="module")
def page(finished: Path) -> Page:
    return page_of(finished)


def test_final_table_shows_the_summary(finished: Path, page: Page) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    for site, phases in summary["sites"].items():
        cells = page.row(site)
        assert cells[1] == str(HOSPITALS[site])
        for place, phase in enumerate(("local-only", "received", "personal")):
            metrics, shown = phases[phase], cells[2 + 3 * place : 5 + 3 * place]
            low, high = stats.binomtest(
                round(metrics["accuracy"] * metrics["examples"]), metrics["examples"]
            ).proportion_ci(method="wilson")
            assert shown[0] == f"{metrics['accuracy']:.2f}{low:.2f}–{high:.2f}"
            assert shown[1:] == [f"{metrics['auc']:.2f}", f"{metrics['f1']:.2f}"]
    mean, worst = page.row("Mean of hospitals"), page.row("Worst hospital")
    for place, phase in enumerate(("local-only", "received", "personal")):
        assert mean[2 + 3 * place].startswith(f"{summary['mean'][phase]['accuracy']:.2f}")
        low = summary["worst"][phase]
        assert worst[2 + 3 * place] == f"{low['accuracy']:.2f}{low['site']}"
    assert page.row("Switzerland", "held-out")[1] == "25"
    assert "Switzerland" not in [row[0] for row in page.rows["results"] if row]


def set_accuracy(folder: Path, **by_phase: float) -> None:
    """Give every site the same test accuracy per phase; the summary's means go."""
    summary = json.loads((folder / "summary.json").read_text())
    for phases in summary["sites"].values():
        for phase, value in by_phase.items():
            phases[phase.replace("_", "-")]["accuracy"] = value
    del summary["mean"], summary["worst"]
    (folder / "summary.json").write_text(json.dumps(summary))


def test_words_name_the_best_and_the_noise(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    set_accuracy(folder, local_only=0.8, received=0.84, personal=0.82)
    text = page_of(folder).text
    assert "the federated model as received did best: mean test accuracy 0.84" in text
    assert "against 0.82 for the personal models and 0.80 for the models trained alone" in text
    assert "fares best with the federated model as received : Cleveland reaches 0.84" in text
    assert "25 to 61 examples" in text
    assert "gap of 0.02 between the two best means is within noise" in text


def test_words_give_the_auc_in_its_own_order(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    for phase, value in (("local-only", 0.66), ("received", 0.83), ("personal", 0.81)):
        summary["mean"][phase] |= {"auc": value, "accuracy": 0.9 if phase == "local-only" else 0.8}
    (folder / "summary.json").write_text(json.dumps(summary))
    text = page_of(folder).text
    assert "the models trained alone did best: mean test accuracy 0.90" in text
    auc = "is 0.83 for the federated model as received, against 0.81 for the personal models and"
    assert f"{auc} 0.66 for the models trained alone." in text


def test_words_call_equals_level(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    set_accuracy(folder, local_only=0.8, received=0.8, personal=0.8)
    text = page_of(folder).text
    assert "did best" not in text
    assert "come out level: mean test accuracy 0.80" in text
    assert "all of them come out level, at 0.80" in text
    assert "Only other seeds" in text


def test_words_do_not_cry_noise_when_the_gap_is_real(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", sites={f"H{i}": 5000 for i in range(6)})
    set_accuracy(folder, local_only=0.6, received=0.7, personal=0.9)
    text = page_of(folder).text
    assert "larger than the sampling noise" in text
    assert "within noise" not in text


def test_plots_are_named_and_described(finished: Path, page: Page) -> None:
    sites = len(HOSPITALS) - 1
    assert page.count("svg", role="img") == 1 + sites + 5 + 2
    identifiers = [found["id"] for _, found in page.tags if "id" in found]
    assert len(identifiers) == len(set(identifiers))
    for tag, found in page.tags:
        if tag == "svg" and found.get("role") == "img":
            assert set((found["aria-labelledby"] or "").split()) <= set(identifiers)
        for value in found.values():
            for target in re.findall(r"url\(#([^)]+)\)|^#(.+)$", value or ""):
                assert "".join(target) in identifiers
    assert "from" in page.text
    assert "95 % interval" in page.text
    # No colour of the drawing may be left that ignores dark mode.
    text = (finished / "report.html").read_text()
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", drawings)


def test_curves_are_where_the_numbers_are(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", sites={"Only": 100}, rounds=3)
    wanted = {"received": [0.5, 0.7, 0.8], "personal": [0.6, 0.9, 1.0]}

    def change(row: dict[str, Any]) -> None:
        if row["phase"] in wanted and row["split"] == "validation":
            row["accuracy"] = wanted[row["phase"]][row["round"] - 1]

    edit_rows(folder, change)
    text = write_report(folder).read_text()
    drawing = re.search(r"<svg[^>]*curve-0-title.*?</svg>", text, re.DOTALL)
    assert drawing
    for role, values in wanted.items():
        line = re.search(rf'<path d="([^"]+)" style="[^"]*stroke: var\(--{role}\)', drawing[0])
        assert line
        points = np.array(re.findall(r"[ML] ?([\d.]+) ([\d.]+)", line[1]), dtype=float)
        assert len(points) == 3
        slope, residual, *_ = np.polyfit(values, points[:, 1], 1, full=True)
        assert slope[0] < 0  # SVG counts downwards
        assert residual < 0.01
        assert np.diff(points[:, 0]) == pytest.approx(np.diff(points[:, 0]).mean(), abs=0.02)


def test_what_a_run_measured_besides_has_its_curves(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", sites={"Only": 100}, rounds=3)
    titles = {
        "Consistency of the updates": ("drift_diversity", "movement_cosine"),
        "Movement": ("client_movement",),
        "Signal to noise of the gradients": ("gsnr", "gsnr_median"),
        "Directions of no use": ("insensitive_share", "basis_agreement"),
    }
    assert not any(f"<h3>{title}</h3>" in write_report(folder).read_text() for title in titles)

    def add(row: dict[str, Any]) -> None:
        if row["phase"] == "federation":
            row |= {key: float(row["round"]) for keys in titles.values() for key in keys}

    edit_rows(folder, add)
    text = write_report(folder).read_text()
    for title in titles:
        assert f"<h3>{title}</h3>" in text
    (drawing,) = re.findall(r"<svg[^>]*diagnostic-gsnr-title.*?</svg>", text, re.DOTALL)
    assert {"first", "second"} <= set(re.findall(r"stroke: var\(--(\w+)\)", drawing))


def test_tables_have_scoped_headers_and_scroll_in_a_named_box(page: Page) -> None:
    headers = [found for tag, found in page.tags if tag == "th"]
    assert headers
    assert all(found.get("scope") in {"col", "row", "colgroup"} for found in headers)
    boxes = [found for _, found in page.tags if "scroll" in (found.get("class") or "").split()]
    assert len(boxes) == page.count("table")
    assert all(box.get("tabindex") == "0" and box.get("aria-label") for box in boxes)


def test_nothing_is_fetched_or_run(finished: Path, page: Page) -> None:
    text = (finished / "report.html").read_text()
    assert not {"script", "iframe", "object", "embed", "img"} & {tag for tag, _ in page.tags}
    policy = next(f["content"] for t, f in page.tags if "Content-Security-Policy" in f.values())
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy
    for _, found in page.tags:
        assert not any(key.startswith("on") for key in found)
        target = found.get("href") or found.get("xlink:href") or found.get("src") or "#"
        assert target.startswith(("#", "data:"))
    addresses = set(re.findall(r"https?://[^\"' <]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert len(text.encode()) < 150_000


def test_settings_mark_what_is_not_default(page: Page) -> None:
    default = RunConfig().train.learning_rate
    assert page.row("train.learning-rate", "settings")[1] == f"0.001default: {default}"
    assert page.row("lora.rank", "settings")[1] == "8"
    changed = {"federation.held-out", "train.learning-rate"}
    assert page.count("mark") == len(changed)
    assert {row[0] for row in page.rows["settings"][1:3]} == changed


def test_same_run_same_bytes(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "demo")
    assert write_report(copy).read_bytes() == write_report(finished).read_bytes()


HOSTILE = (
    '<script>alert("1")</script>', "O'Hara & \"Söhne\" <b>", "$\\frac{1}{0}$", "]]>--><!--",
    "\u202egnirts\x00\x1b", "x" * 300, "</title></style>",
)  # fmt: skip


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", sites=dict.fromkeys(HOSTILE, 30), held_out=HOSTILE[:1])
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["data.source"] = config["versions"]["torch"] = HOSTILE[0]
    for told in config["sites"].values():
        told |= {"base_model": HOSTILE[0], "device": HOSTILE[1], "notes": [HOSTILE[6]]}
    (folder / "config.json").write_text(json.dumps(config))
    page = page_of(folder)
    assert not {"script", "b"} & {tag for tag, _ in page.tags}
    names = [row[0] for row in page.rows["results"] if row]
    for name in HOSTILE[1:]:
        assert re.sub(r"[\x00\x1b]", "\ufffd", name) in names
    assert page.row(HOSTILE[0], "held-out")


def test_undefined_numbers_are_dashes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    summary["sites"]["Switzerland"]["personal"]["auc"] = None
    del summary["sites"]["Switzerland"]["received"]["auc"]
    summary["sites"]["Cleveland"]["personal"]["f1"] = float("nan")
    summary["mean"]["personal"]["auc"] = None
    (folder / "summary.json").write_text(json.dumps(summary))
    page = page_of(folder)
    switzerland, cleveland = page.row("Switzerland"), page.row("Cleveland")
    assert (switzerland[6], switzerland[9], cleveland[10]) == ("–", "–", "–")
    known = [s["personal"]["auc"] for n, s in summary["sites"].items() if n != "Switzerland"]
    assert page.row("Mean of hospitals")[9] == f"{sum(known) / 3:.2f}"


def test_unfinished_run_says_so(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", finished=False))
    assert "This run has not finished" in page.text
    assert "up to round 3" in page.text
    assert "3 of 4 rounds" in page.text
    assert "validation accuracy" in page.text
    assert "test accuracy" not in page.text
    assert "fedapp run --resume runs/run" in page.text


@pytest.mark.parametrize(
    ("state", "held", "chip", "words"),
    [
        ("running", True, "unfinished", "it is still going on"),
        ("running", False, "interrupted", "its process has gone, because it was killed"),
        ("stopped", False, "stopped", "it was stopped"),
        ("failed", False, "failed", "it failed; status.json says why"),
    ],
)
def test_unfinished_run_says_how_it_ended(
    tmp_path: Path, state: State, held: bool, chip: str, words: str
) -> None:
    folder = RunFolder(write_run(tmp_path / "run", finished=False))
    folder.write_status(state, run_id=1)
    lock = RunLock(folder.path) if held else None

    text = page_of(folder.path).text

    assert chip in text
    assert f"This run has not finished: {words}" in text
    assert "fedapp run --resume runs/run" in text
    if lock is not None:
        lock.release()


def test_failed_run_says_why(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"status": "failed", "error": "round 3: 2 replies missing (Hungary, <b>)"}
    (folder / "summary.json").write_text(json.dumps(summary))
    text = page_of(folder).text
    assert "ended as “failed”: round 3: 2 replies missing (Hungary, <b>)" in text


def test_damaged_metrics_are_counted_and_the_rest_is_used(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", finished=False)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + '[1]\n{"round": "x"}\n{"round": 4, "site": "Cle')
    page = page_of(folder)
    assert "3 unreadable lines of metrics.jsonl left out" in page.text
    assert page.row("Cleveland")


def test_a_round_repeated_after_resume_counts_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2)
    path = folder / "metrics.jsonl"
    before = page_of(folder)
    federation = [line for line in path.read_text().splitlines() if '"federation"' in line]
    path.write_text(path.read_text() + federation[-1] + "\n")
    assert page_of(folder).rows["rounds"] == before.rows["rounds"]


def test_before_round_one_there_is_a_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    (folder / "summary.json").unlink()
    page = page_of(folder)
    assert "No hospital has reported" in page.text
    assert page.rows["settings"]


def test_without_config_there_is_a_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "config.json").write_text("{broken")
    page = page_of(folder)
    assert "config.json cannot be read" in page.text
    assert page.row("Cleveland")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedappError, match="nothing to report"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rounds", [1, 2, 300])
def test_any_number_of_rounds(tmp_path: Path, rounds: int) -> None:
    page = page_of(write_run(tmp_path / "run", rounds=rounds))
    assert f"{rounds} of {rounds} round" in page.text
    assert len(page.rows["rounds"]) - 1 <= 201
    assert page.rows["rounds"][-1][0] == str(rounds)


def test_sixty_four_hospitals_fold_away(tmp_path: Path) -> None:
    sites = {f"Hospital {number:02d}": 20 + number for number in range(64)}
    page = page_of(write_run(tmp_path / "run", sites=sites, rounds=3))
    assert sum(row[0] in sites for row in page.rows["results"] if row) == 64
    assert page.count("svg", role="img") == 65 + 5 + 2
    assert "The other 54 hospitals" in page.text
    assert page.count("div", class_="scroll tall") == 2


def test_one_hospital_has_no_mean(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", sites={"Only": 40}))
    assert "Mean of hospitals" not in page.text
    assert "Worst hospital" not in page.text


def test_hundreds_of_hospitals_stay_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.report.curves.MOST_DRAWN", 15)
    sites = {f"Hospital {number:03d}": 30 for number in range(40)}
    page = page_of(write_run(tmp_path / "run", sites=sites, rounds=1))
    assert sum(row[0] in sites for row in page.rows["results"] if row) == 40
    assert page.count("svg", role="img") == 1 + 15 + 4 + 2
    assert "The next 5 hospitals" in page.text


def test_training_time_of_sites_side_by_side_is_not_counted_twice(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=1)

    def change(row: dict[str, Any]) -> None:
        row["seconds"] = 40.0 if row["site"] is None else 19.0
        if row["site"] is None:
            row["training_seconds"] = 64.0

    edit_rows(folder, change)
    text = page_of(folder).text
    assert "training, 2 hospitals side by side" in text  # 4 x 19 s of work in 40 s
    assert "of that, training 80 %" in text  # 64 / 2 of 40 s


def test_sites_that_were_missing_are_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2)

    def change(row: dict[str, Any]) -> None:
        if row["site"] is None and row["round"] == 2:
            row["missing"] = {"Hungary": "DataError"}

    edit_rows(folder, change)
    summary = json.loads((folder / "summary.json").read_text())
    summary["missing"] = {"Hungary evaluate": "no reply within 30 s"}
    (folder / "summary.json").write_text(json.dumps(summary))
    page = page_of(folder)
    assert page.rows["rounds"][-1][-1] == "Hungary (DataError)"
    assert "Not measured: Hungary evaluate: no reply within 30 s" in page.text


def test_hospitals_are_listed_as_they_described_themselves(page: Page) -> None:
    notes = "2 duplicate records were dropped"
    assert page.row("Cleveland", "hospitals") == ["Cleveland", "183", "61", "61", "cpu", notes]
    assert "num_labels=2" in page.text
    assert "all-MiniLM-L6-v2" in page.text


def test_a_model_that_answers_one_class_is_called_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    # 25 records, 23 of class 1, all called 1: F1 = 2 TP / (2 TP + FP + FN) is 46/48 and 0.
    f1 = (2 * 23 / (2 * 23 + 2) + 0) / 2
    summary = json.loads((folder / "summary.json").read_text())
    summary["sites"]["Switzerland"]["received"] |= {
        "accuracy": float(np.float32(23 / 25)),
        "f1": float(np.float32(f1)),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    text = page_of(folder).text
    said = "One class only: the federated model as received at Switzerland gave every example"
    assert said in re.sub(r" +", " ", text)
    assert "One class only" not in page_of(write_run(tmp_path / "other")).text


def test_a_rehearsal_of_attacks_is_told_first_and_shows_the_honest_sites(tmp_path: Path) -> None:
    for finished in (True, False):
        settings = {"faults.sites": "Hungary", "faults.attack": "ipm"}
        folder = write_run(tmp_path / f"run-{finished}", settings=settings, finished=finished)

        page = write_report(folder).read_text()

        assert "REHEARSAL OF ATTACKS: faulty on purpose: Hungary" in page
        assert page.index("REHEARSAL") < page.index("Result")
        assert "rehearsal of attacks" in page
    assert "REHEARSAL" not in write_report(write_run(tmp_path / "plain")).read_text()
