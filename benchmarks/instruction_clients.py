"""Files of instruction clients for the benchmark of personalised methods.

Not a benchmark itself. The records are those of `embedded:instructions` and `embedded:sentiment`,
and of a MedQuAD file, as a user's JSONL with the columns prompt, response and site.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from client_app.data.sources.instructions import read_instructions
from client_app.data.sources.sentiment import LABELS, read_sentiment
from fedapp.atomic import write_bytes
from fedapp.cache import cache_folder

Record = dict[str, str]

KINDS = ("disease", "findings", "pain", "pressure")
"""Kinds of question about a heart patient that become clients; each patient is asked one."""
SENTIMENT = {
    "Films": ("Does the reviewer like the film?", "no, it is a bad film", "yes, a good film"),
    "Tweets": ("What is the mood of this tweet?", "bad mood", "good mood"),
}
INSTITUTIONS = ("GHR", "NINDS", "GARD", "SeniorHealth", "NIDDK")
"""Those of MedQuAD with 80 short answers or more."""
IN_MIXTURE = ("GARD", "NINDS")


def kinds() -> Iterator[Record]:
    """A client for each kind of question about the heart patients."""
    for example in read_instructions().examples:
        if example.stratum in KINDS:
            yield _heart(example.fields, example.stratum)


def hospitals() -> Iterator[Record]:
    """The four hospitals, each with every kind of question."""
    table = read_instructions()
    for example, site in zip(table.examples, table.sites or (), strict=True):
        yield _heart(example.fields, site)


def sentiment() -> Iterator[Record]:
    """A client for each of two sources of texts, with a question and answers of its own."""
    table = read_sentiment()
    for example, site in zip(table.examples, table.sites or (), strict=True):
        if site in SENTIMENT:
            question, *answers = SENTIMENT[site]
            answer = answers[LABELS.index(example.stratum)]
            yield {
                "prompt": f"{example.fields['text']} {question}", "response": answer, "site": site
            }  # fmt: skip


def medquad(path: Path, sites: tuple[str, ...]) -> Iterator[Record]:
    """A client for each institution of MedQuAD."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if row["site"] in sites:
                yield {"prompt": row["question"], "response": row["answer"], "site": row["site"]}


def tasks(path: Path | None) -> Iterator[Record]:
    """Clients that have no task in common; ``path`` of a MedQuAD file adds two institutions."""
    yield from kinds()
    yield from sentiment()
    if path is not None:
        yield from medquad(path, IN_MIXTURE)


def four(path: Path) -> Iterator[Record]:
    """Four of these, for a model whose steps are dear: one of each source, and one more."""
    for record in tasks(path):
        if record["site"] in ("disease", "Films", *IN_MIXTURE):
            yield record


def folder() -> Path:
    """Return where the files are, in the cache folder."""
    path = cache_folder() / "benchmarks"
    path.mkdir(parents=True, exist_ok=True)
    return path


def written(name: str, records: Callable[[], Iterator[Record]]) -> str:
    """Write a file and return its name."""
    text = "".join(json.dumps(record) + "\n" for record in records())
    write_bytes(folder() / f"{name}.jsonl", text.encode())
    return f"{name}.jsonl"


def _heart(fields: dict[str, object], site: str) -> Record:
    (message,) = fields["messages"]  # type: ignore[misc]
    return {"prompt": message["content"], "response": str(fields["response"]), "site": site}
