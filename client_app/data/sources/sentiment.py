"""Human-rated sentiment of texts from four sources, read straight from a source archive.

Data: Hutto and Gilbert, VADER, ICWSM 2014, MIT licence, as shipped in the source distribution of
vaderSentiment (its wheel lacks it).
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from client_app.data.schemas.classification import labelled_texts
from client_app.data.sources.pinned import pinned_path, read_pinned
from client_app.data.table import Table
from fedapp.errors import DataError

ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
SOURCES = {
    "Editorials": "nytEditorialSnippets_GroundTruth.txt",
    "Films": "movieReviewSnippets_GroundTruth.txt",
    "Products": "amazonReviewSnippets_GroundTruth.txt",
    "Tweets": "tweets_GroundTruth.txt",
}
LABELS = ("negative", "positive")
DOWNLOAD = (  # the folder as the shell knows it: the account's name need not leave the site
    "`pip download --no-deps --no-binary :all: --dest ~/.cache/fedapp/downloads "
    "vaderSentiment==3.3.2`"
)
WEAKEST = 0.5  # mean ratings run from -4 to 4; nearer to 0 the raters disagree on the sign


def archive_path() -> Path:
    """Where the archive is expected: ``downloads/`` in the cache folder."""
    return pinned_path(ARCHIVE)


def read_sentiment() -> Table:
    """Read the texts with ``abs(mean rating) >= 0.5``; the label is the sign.

    Raises
    ------
    DataError
        If the archive is absent or is not the pinned file.
    """
    remedy = f"`make sentiment` or {DOWNLOAD}"
    content = read_pinned("embedded:sentiment", ARCHIVE, SHA256, remedy)
    texts: list[str] = []
    labels: list[str] = []
    sites: list[str] = []
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as outer,
        tarfile.open(fileobj=io.BytesIO(_member(outer, INNER))) as inner,
    ):
        for site, name in SOURCES.items():
            lines = _member(inner, f"hutto_ICWSM_2014/{name}").decode("utf-8-sig")
            for line in filter(None, lines.split("\r\n")):
                _, score, text = line.split("\t", 2)
                if abs(float(score)) >= WEAKEST and text.strip():
                    texts.append(text.strip())
                    labels.append(LABELS[float(score) > 0])
                    sites.append(site)
    return Table("embedded:sentiment", labelled_texts(texts, labels), sites, label_map=LABELS)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name) if name in archive.getnames() else None
    if stream is None:
        raise DataError(f"embedded:sentiment: {ARCHIVE} lacks the file {name}; delete the archive")
    return stream.read()
