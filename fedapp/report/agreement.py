"""Who agreed with whom over rounds, and what the exchange cost: from the nodes' ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapp.gossip.ledger import Heard, LedgerEntry
from fedapp.gossip.traffic import Traffic
from fedapp.report.cards import card
from fedapp.report.deciding import Deciding, deciding
from fedapp.report.heat_map import FAINTEST, heat_map
from fedapp.report.ledgers import Ledgers
from fedapp.report.markup import Html, element, join, name
from fedapp.report.refused import anchors, refused_tables, row_text
from fedapp.report.tables import scroll
from fedapp.report.units import plural, size

MOST_CARDS = 12
MOST_ROWS = 24  # of one heat map; the faintest are shown
MOST_TOLD = 12_000
"""Cells that say their row of the ledger when pointed at (about 2 MB); the newest rounds first."""
Anchors = Mapping[tuple[str, int, str], str]


def agreement_section(ledgers: Ledgers, settings: Mapping[str, Any]) -> Html | None:
    """One heat map a node, who was refused by what, and a table of bytes and messages."""
    if not ledgers:
        return None
    nodes = sorted(ledgers)
    drawn = deciding(settings, lambda: _heard(ledgers))
    maps = [_Map.of(node, ledgers[node], drawn) for node in nodes[:MOST_CARDS]]
    since, where = _told_since(maps), anchors(ledgers)
    cards = [
        each.card(f"agreement-{index}", since, where)
        for index, each in enumerate(maps)
        if each.cells
    ]
    return element(
        "section",
        element("h2", "Exchange between hospitals", id="exchange"),
        element("div", _guide(len(nodes), drawn, since), *cards, class_="grid") if cards else None,
        _traffic(ledgers),
        refused_tables(ledgers),
        aria_labelledby="exchange",
    )


def _heard(ledgers: Ledgers) -> Iterator[Heard]:
    for entries in ledgers.values():
        for entry in entries:
            yield from entry.heard


@dataclass(frozen=True)
class _Map:
    """What one node's heat map shows.

    Attributes
    ----------
    node : str
    drawn : Deciding
    rounds : (int, int)
        First and last.
    cells, heard : dict of str to dict
        By peer and round: values, and the ledger's rows behind them.
    left : int
        Peers that are not shown.
    """

    node: str
    drawn: Deciding
    rounds: tuple[int, int]
    cells: dict[str, dict[int, float | None]]
    heard: dict[str, dict[int, Heard]]
    left: int

    @classmethod
    def of(cls, node: str, entries: Sequence[LedgerEntry], drawn: Deciding) -> _Map:
        cells: dict[str, dict[int, float | None]] = {}
        rows: dict[str, dict[int, Heard]] = {}
        for entry in entries:
            for heard in entry.heard:
                row = cells.setdefault(heard.origin, {})
                if heard.accepted or drawn.is_scored(heard):
                    row[entry.round] = drawn.value(heard)
                rows.setdefault(heard.origin, {})[entry.round] = heard
            for missing in entry.missing:
                cells.setdefault(missing, {})
        least = sorted(cells, key=lambda peer: (_mean(cells[peer]), peer))[:MOST_ROWS]
        return cls(
            node,
            drawn,
            (entries[0].round, entries[-1].round),
            {peer: cells[peer] for peer in sorted(least)},
            {peer: rows.get(peer, {}) for peer in sorted(least)},
            len(cells) - len(least),
        )

    def card(self, key: str, since: int, where: Anchors) -> Html:
        refused = {
            peer: [round_ for round_, heard in row.items() if not heard.accepted]
            for peer, row in self.heard.items()
        }
        told = {
            peer: {
                round_: (
                    row_text(self.node, round_, heard),
                    where.get((self.node, round_, heard.origin)),
                )
                for round_, heard in row.items()
                if round_ >= since
            }
            for peer, row in self.heard.items()
        }
        title = self.drawn.title(self.node)
        svg = heat_map(self.cells, refused, self.rounds, key=key, title=title, told=told)
        above = f"The {MOST_ROWS} with the faintest rows; {self.left} more." if self.left else ""
        return card(name(self.node), element("p", above, class_="quiet") if above else None, svg)


def _told_since(maps: Sequence[_Map]) -> int:
    """Return the first round whose cells say their rows, `MOST_TOLD` at most; 0 if all do."""
    count = Counter(round_ for each in maps for row in each.heard.values() for round_ in row)
    told, since = 0, max(count, default=0) + 1
    for round_ in sorted(count, reverse=True):
        told += count[round_]
        if told > MOST_TOLD:
            return since
        since = round_
    return 0


def _mean(row: Mapping[int, float | None]) -> float:
    known = [value for value in row.values() if value is not None]
    return sum(known) / len(known) if known else -1.0


def _guide(nodes: int, drawn: Deciding, since: int) -> Html:
    text = (
        "One row a peer, one column a round, as the hospital above saw it. Where nothing is drawn "
        "nothing arrived before the deadline; a cross was refused. A cell that is pointed at says "
        "its row of the ledger, and leads to it where the table below has it"
    )
    text += f" (from round {since} on; the older ones are in the ledgers)." if since else "."
    more = f" Shown are the first {MOST_CARDS} of {nodes} hospitals." if nodes > MOST_CARDS else ""
    return element(
        "div",
        element("h3", "How to read the heat maps"),
        element("ul", *(_swatch(*each) for each in drawn.swatches), class_="legend"),
        element("p", drawn.guide, class_="quiet"),
        element("p", text + more, class_="quiet"),
        class_="card guide",
    )


def _swatch(value: float, words: str) -> Html:
    opacity = FAINTEST + (1 - FAINTEST) * value
    square = element(
        "rect", x=8, width=12, height=12, fill="var(--received)", fill_opacity=f"{opacity:.2f}"
    )
    drawn = element("svg", square, viewBox="0 0 28 12", aria_hidden="true")
    return element("li", drawn, words)


def _traffic(ledgers: Ledgers) -> Html:
    heads = ("Hospital", "Rounds", "Sent a round", "Received a round", "Messages a round", "Again")
    head = element(
        "tr",
        *(
            element("th", text, scope="col", class_="key" if text == "Hospital" else None)
            for text in heads
        ),
    )
    rows = [_traffic_row(node, ledgers[node]) for node in sorted(ledgers)]
    table = element(
        "table",
        element(
            "caption",
            "Bytes and messages between hospitals, without what TLS and TCP add. “Again”: what "
            "broken connections had to send twice, in all.",
        ),
        element("thead", head),
        element("tbody", *rows),
    )
    summary = element(
        "summary", f"Bytes and messages of {plural(len(ledgers), 'hospital')}, a round"
    )
    return element("details", summary, element("div", scroll("Traffic between hospitals", table)))


def _traffic_row(node: str, entries: Sequence[LedgerEntry]) -> Html:
    total = sum((entry.traffic for entry in entries), Traffic())
    rounds = len(entries)
    cells = (
        f"{rounds}",
        size(total.sent_bytes / rounds),
        size(total.received_bytes / rounds),
        f"{(total.sent_messages + total.received_messages) / rounds:,.0f}",
        size(total.resent),
    )
    return element(
        "tr",
        element("th", name(node), scope="row", class_="key"),
        join(*(element("td", cell) for cell in cells)),
    )
