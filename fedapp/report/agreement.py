"""Who agreed with whom over rounds, and what the exchange cost: from the nodes' ledgers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedapp.gossip.ledger import LedgerEntry
from fedapp.gossip.traffic import Traffic
from fedapp.report.cards import card
from fedapp.report.heat_map import FAINTEST, heat_map
from fedapp.report.ledgers import Ledgers
from fedapp.report.markup import Html, element, join, name
from fedapp.report.refused import refused_tables
from fedapp.report.tables import scroll
from fedapp.report.units import plural, size

SCORE = "agreement"
MOST_CARDS = 12
MOST_ROWS = 24  # of one heat map; those with the least agreement are shown


def agreement_section(ledgers: Ledgers) -> Html | None:
    """One heat map a node, who was refused by what, and a table of bytes and messages."""
    if not ledgers:
        return None
    nodes = sorted(ledgers)
    cards = [
        made
        for index, node in enumerate(nodes[:MOST_CARDS])
        if (made := _card(node, ledgers[node], f"agreement-{index}")) is not None
    ]
    return element(
        "section",
        element("h2", "Exchange between hospitals", id="exchange"),
        element("div", _guide(len(nodes)), *cards, class_="grid") if cards else None,
        _traffic(ledgers),
        refused_tables(ledgers),
        aria_labelledby="exchange",
    )


def _card(node: str, entries: Sequence[LedgerEntry], key: str) -> Html | None:
    cells: dict[str, dict[int, float | None]] = {}
    refused: dict[str, list[int]] = {}
    for entry in entries:
        for heard in entry.heard:
            if heard.accepted or SCORE in heard.scores:
                cells.setdefault(heard.origin, {})[entry.round] = heard.scores.get(SCORE)
            if not heard.accepted:
                cells.setdefault(heard.origin, {})
                refused.setdefault(heard.origin, []).append(entry.round)
        for missing in entry.missing:
            cells.setdefault(missing, {})
    if not cells:
        return None
    shown = sorted(sorted(cells, key=lambda peer: (_mean(cells[peer]), peer))[:MOST_ROWS])
    svg = heat_map(
        {peer: cells[peer] for peer in shown},
        refused,
        (entries[0].round, entries[-1].round),
        key=key,
        title=f"Agreement of {node} with its peers over rounds",
    )
    left = len(cells) - len(shown)
    above = f"The {MOST_ROWS} with the least agreement; {left} more." if left else None
    note = element("p", above, class_="quiet") if above else None
    return card(name(node), note, svg)


def _mean(row: Mapping[int, float | None]) -> float:
    known = [value for value in row.values() if value is not None]
    return sum(known) / len(known) if known else -1.0


def _guide(nodes: int) -> Html:
    text = (
        "One row a peer, one column a round, as the hospital above saw it. Where nothing is drawn "
        "nothing arrived before the deadline; a cross was refused, and the ledger says why."
    )
    more = f" Shown are the first {MOST_CARDS} of {nodes} hospitals." if nodes > MOST_CARDS else ""
    return element(
        "div",
        element("h3", "How to read the heat maps"),
        element("ul", *(_swatch(value) for value in (0.0, 0.5, 1.0)), class_="legend"),
        element("p", text + more, class_="quiet"),
        class_="card guide",
    )


def _swatch(value: float) -> Html:
    opacity = FAINTEST + (1 - FAINTEST) * value
    square = element(
        "rect", x=8, width=12, height=12, fill="var(--received)", fill_opacity=f"{opacity:.2f}"
    )
    drawn = element("svg", square, viewBox="0 0 28 12", aria_hidden="true")
    return element("li", drawn, f"agreement {value:g}")


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
