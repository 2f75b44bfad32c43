"""HTML that cannot be injected into: everything that is not `Html` is escaped."""

from __future__ import annotations

import html
import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
_VOID = {"meta", "link", "br", "hr", "col"}


class Html(str):
    """Text that is already HTML; only `element`, `join` and constants of ours make it."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Escape text for HTML content and attributes; control characters become U+FFFD."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(_CONTROL.sub("\ufffd", str(value)), quote=True))


def join(*children: object) -> Html:
    """Concatenate, escaping whatever is not `Html` and skipping None."""
    return Html("".join(escape(child) for child in children if child is not None))


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Build one element.

    Parameters
    ----------
    tag : str
        Element name.
    *children : object
        `Html` is kept, None is skipped, everything else is escaped.
    **attributes : object
        A trailing underscore is dropped (``class_``), inner ones become dashes (``aria_label``);
        None and False are left out, True gives a bare attribute.
    """
    parts = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{escape(value)}"')
    opening = f"<{tag}{''.join(parts)}>"
    return Html(opening if tag in _VOID else f"{opening}{join(*children)}</{tag}>")


def name(text: object) -> Html:
    """A name from outside (a hospital, a label): escaped, and isolated from text direction."""
    return element("bdi", text)
