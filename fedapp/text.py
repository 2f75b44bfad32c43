"""Text that another machine chose: what a name may be, and how it is shown."""

from __future__ import annotations

import unicodedata

LONGEST_NAME = 100
LONGEST_ECHO = 80
"""Most characters of a foreign name or value within a sentence."""

# Control, format (bidirectional overrides among them), surrogates, line and paragraph separators:
# they move the cursor, turn text around or start a line that nobody wrote.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def clean(text: str, longest: int = LONGEST_ECHO) -> str:
    """Return ``text`` on one line: hidden characters escaped, cut at ``longest`` characters."""
    cut = text[: longest + 1]  # escapes only lengthen it: no more than this is ever shown
    shown = "".join(
        ascii(char)[1:-1] if unicodedata.category(char) in _HIDDEN else char for char in cut
    )
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def shown(value: object, longest: int = LONGEST_ECHO) -> str:
    """Return a foreign value as Python writes it, on one line and cut; of a list its type.

    A value that is nested almost as deeply as Python can read cannot be written any more.
    """
    plain = value is None or isinstance(value, bool | int | float | str)
    return clean(repr(value), longest) if plain else f"of type {type(value).__name__}"


def site_name(name: str) -> str:
    """Return the name of a site if it is one.

    Raises
    ------
    ValueError
        If it is not 1 to `LONGEST_NAME` printable characters in the composed form (NFC), in which
        two names that look alike as é and e + accent do are one.
    """
    if (
        not 0 < len(name) <= LONGEST_NAME
        or not name.isprintable()
        or not unicodedata.is_normalized("NFC", name)
    ):
        raise ValueError(
            f"a site's name must have 1 to {LONGEST_NAME} printable characters in Unicode form "
            f"NFC, got '{clean(name)}'"
        )
    return name
