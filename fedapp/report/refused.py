"""Who was refused by which gate, and the ledger's row behind every cell of the heat maps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from fedapp.gossip.ledger import Heard, LedgerEntry
from fedapp.report.ledgers import Ledgers
from fedapp.report.markup import Html, element, join, name
from fedapp.report.tables import scroll
from fedapp.report.units import decimal, plural

MOST_ROWS = 400
"""Rows of the ledgers that are shown, the newest rounds first."""
OTHER = "other"
_WORD = re.compile(r"[a-z][a-z-]{0,23}")


def refused_tables(ledgers: Ledgers) -> Html:
    """Return a table of refusals by gate, and the rows themselves."""
    return join(_by_gate(ledgers), _rows(ledgers))


def anchors(ledgers: Ledgers) -> dict[tuple[str, int, str], str]:
    """Return the ids of the rows that are shown, by node, round and peer."""
    shown = _newest(ledgers)[:MOST_ROWS]
    return {
        (node, round_, heard.origin): f"row-{number}"
        for number, (round_, node, heard) in enumerate(shown)
    }


def row_text(node: str, round_: int, heard: Heard) -> str:
    """Return a row of a ledger in words, as a cell's tooltip says it."""
    scores = "".join(f", {score} {decimal(value)}" for score, value in sorted(heard.scores.items()))
    return (
        f"{node}, round {round_}: {heard.origin} {_decision(heard)}, weight "
        f"{decimal(heard.weight)}{scores}, update {_digest(heard) or 'unknown'}"
    )


def refusers(reason: str) -> tuple[str, ...]:
    """Return the gates that a ledger's reason names; another reason is one word, or `OTHER`.

    A gate is a word by itself; what refused an update before any gate saw it is followed by a
    sentence.
    """
    if not reason:
        return ()
    before, colon, _ = reason.partition(": ")
    if colon:
        return (before if _WORD.fullmatch(before) else OTHER,)
    words = tuple(part.strip() for part in reason.split(","))
    return words if all(_WORD.fullmatch(word) for word in words) else (OTHER,)


def _by_gate(ledgers: Ledgers) -> Html:
    counts: dict[tuple[str, str], Counter[str]] = {}
    for node, entries in sorted(ledgers.items()):
        for entry in entries:
            for heard in entry.heard:
                count = counts.setdefault((node, heard.origin), Counter())
                count["heard"] += 1
                count["accepted"] += heard.accepted
                count.update(f"by {gate}" for gate in refusers(heard.reason))
    gates = sorted({key for count in counts.values() for key in count if key.startswith("by ")})
    head = _head(("Hospital", "Peer", "Heard", "Accepted", *map(str.capitalize, gates)))
    rows = [
        element(
            "tr",
            element("th", name(node), scope="row", class_="key"),
            element("td", name(peer)),
            *(element("td", f"{count[key]}") for key in ("heard", "accepted", *gates)),
        )
        for (node, peer), count in sorted(counts.items())
    ]
    caption = (
        "Rounds in which each hospital heard a peer, accepted its model, or refused it, by what; "
        "several gates may refuse at once."
    )
    table = element(
        "table", element("caption", caption), element("thead", head), element("tbody", *rows)
    )
    refused = sum(count["heard"] - count["accepted"] for count in counts.values())
    summary = element("summary", f"Who was refused by what: {plural(refused, 'refusal')}")
    return element("details", summary, element("div", scroll("Refusals by gate", table)))


def _rows(ledgers: Ledgers) -> Html:
    found, ids = _newest(ledgers), anchors(ledgers)
    scores = sorted({score for _, _, heard in found for score in heard.scores})
    titles = ("Hospital", "Round", "Peer", *map(str.capitalize, scores), "Weight", "Decision")
    head = _head((*titles, "Update"))
    body = [
        _row(round_, node, heard, scores, ids[node, round_, heard.origin])
        for round_, node, heard in found[:MOST_ROWS]
    ]
    left = len(found) - len(body)
    more = (
        f" The newest {MOST_ROWS} are shown; {left} more are in the ledgers, and each cell above "
        "says its own when pointed at."
        if left
        else ""
    )
    caption = f"What the ledgers say, the newest rounds first.{more}"
    table = element(
        "table", element("caption", caption), element("thead", head), element("tbody", *body)
    )
    summary = element("summary", f"The ledgers' rows: {plural(len(found), 'decision')}")
    return element("details", summary, element("div", scroll("Rows of the ledgers", table)))


def _newest(ledgers: Ledgers) -> list[tuple[int, str, Heard]]:
    """Return all rows, the newest rounds first."""
    found = [
        (entry.round, node, heard)
        for node, entries in ledgers.items()
        for entry in entries
        for heard in entry.heard
    ]
    return sorted(found, key=lambda row: (-row[0], row[1], row[2].origin))


def _row(round_: int, node: str, heard: Heard, scores: Sequence[str], key: str) -> Html:
    return element(
        "tr",
        element("th", name(node), scope="row", class_="key"),
        element("td", f"{round_}"),
        element("td", name(heard.origin)),
        *(element("td", decimal(heard.scores.get(score))) for score in scores),
        element("td", decimal(heard.weight)),
        element("td", _decision(heard)),
        element("td", _digest(heard)),
        id=key,
    )


def _decision(heard: Heard) -> str:
    return "accepted" if heard.accepted else f"refused: {heard.reason}"


def _digest(heard: Heard) -> str:
    return (heard.digest or "")[:12]


def _head(titles: Iterable[str]) -> Html:
    return element(
        "tr",
        *(
            element("th", text, scope="col", class_="key" if text == "Hospital" else None)
            for text in titles
        ),
    )


def accepted_share(entries: Iterable[LedgerEntry], peers: Iterable[str]) -> float | None:
    """Return the share of the models of ``peers`` that were accepted; None: none was heard."""
    wanted = set(peers)
    heard = [one.accepted for entry in entries for one in entry.heard if one.origin in wanted]
    return sum(heard) / len(heard) if heard else None
