"""Four texts of one source, one of them of the other sign: the sentiment data as choices.

Data: see `client_app.data.sources.sentiment`.
"""

from __future__ import annotations

from client_app.data.checks import find_duplicates
from client_app.data.schemas.multiple_choice import question
from client_app.data.sources.choices_odd import odd_one_out
from client_app.data.sources.sentiment import LABELS, SOURCES, read_sentiment
from client_app.data.table import Table

LONGEST = 100  # characters: a question holds four texts, and is meant to be quick


def read_sentiment_choices() -> Table:
    """Read the questions of the four sources; every text is in at most one.

    The stratum is the source, so that ``data.partition = dirichlet`` mixes sources.

    Raises
    ------
    DataError
        See `sentiment.read_sentiment`.
    """
    table = read_sentiment()
    repeated = find_duplicates(table.contents)
    texts: dict[str, dict[str, list[str]]] = {
        source: {label: [] for label in LABELS} for source in SOURCES
    }
    for row, (example, source) in enumerate(zip(table.examples, table.sites or [], strict=True)):
        if row not in repeated and len(example.fields["text"]) <= LONGEST:
            texts[source][example.stratum].append(example.fields["text"])
    examples, sites = [], []
    for source, kinds in texts.items():
        for kind, choices, answer in odd_one_out(kinds, f"sentiment {source}"):
            examples.append(question(f"Which is {kind}?", choices, answer, source))
            sites.append(source)
    return Table("embedded:sentiment-choices", examples, sites)
