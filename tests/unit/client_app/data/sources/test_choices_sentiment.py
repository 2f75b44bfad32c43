from collections import Counter
from pathlib import Path

import pytest

from client_app.data.load import load_sites
from client_app.data.schemas.classification import labelled_texts
from client_app.data.site_data import SiteData
from client_app.data.sources import choices_sentiment, read_table
from client_app.data.sources.sentiment import LABELS, archive_path
from client_app.data.table import Table
from fedapp.config import RunConfig
from fedapp.errors import DataError

SETTINGS = {"model.task": "multiple-choice", "data.source": "embedded:sentiment-choices"}


def small_archive() -> Table:
    """Forty texts of either sign in two sources, some of them long, some repeated."""
    texts, labels, sites = [], [], []
    for site in ("Films", "Tweets"):
        for label in LABELS:
            for number in range(40):
                long = " and so on" * 20 if number % 10 == 0 else ""
                texts.append(f"{label} {site} {number}{long}" if number else "the same")
                labels.append(label)
                sites.append(site)
    return Table("embedded:sentiment", labelled_texts(texts, labels), sites, label_map=LABELS)


def test_questions_are_of_one_source_and_no_text_is_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices_sentiment, "read_sentiment", small_archive)

    table = read_table(RunConfig.from_flat(SETTINGS))

    assert table.sites == table.strata
    assert Counter(table.sites) == {"Films": 18, "Tweets": 18}
    used = Counter(text for example in table.examples for text in example.fields["choices"])
    assert set(used.values()) == {1}
    for example, site in zip(table.examples, table.sites or [], strict=True):
        texts, answer = example.fields["choices"], example.fields["label"]
        kind = example.fields["context"].removeprefix("Which is ").removesuffix("?")
        # Of the texts that are the same only the first is kept, which is negative.
        signs = ["negative" if text == "the same" else text.split()[0] for text in texts]
        assert [place for place, sign in enumerate(signs) if sign == kind] == [answer]
        assert all(len(text) <= choices_sentiment.LONGEST for text in texts)
        assert all(site in text or text == "the same" for text in texts)


@pytest.mark.skipif(not archive_path().is_file(), reason="needs the archive of `make sentiment`")
def test_the_real_questions() -> None:
    table = read_table(RunConfig.from_flat(SETTINGS))

    assert Counter(table.sites) == {
        "Films": 1106,
        "Tweets": 585,
        "Products": 493,
        "Editorials": 350,
    }


def test_without_the_archive_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(DataError, match="run `make sentiment`"):
        read_table(RunConfig.from_flat(SETTINGS))


def test_dirichlet_mixes_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices_sentiment, "read_sentiment", small_archive)
    settings = SETTINGS | {"data.partition": "dirichlet", "data.sites": 3}

    sites = load_sites(RunConfig.from_flat(settings | {"data.dirichlet-alpha": 1000.0}))

    def sources(data: SiteData) -> set[str]:
        records = [record for split in data.splits.values() for record in split]
        return {text.split()[1] for record in records for text in record["choices"]} - {"same"}

    assert [sources(data) for data in sites.values()] == [{"Films", "Tweets"}] * 3
