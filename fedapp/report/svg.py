"""From a matplotlib figure to a small, accessible, theme-aware inline SVG."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedapp.report.markup import Html, escape

# A role is drawn in a stand-in colour and becomes a CSS variable, so one SVG serves light and dark.
ROLES = {
    role: f"#0a0b{number:02x}"
    for number, role in enumerate(
        (
            "received",
            "personal",
            "local",
            "ink",
            "muted",
            "line",
            "first",
            "second",
            "third",
            "bad",
        ),
        1,
    )
}
UNITS_PER_INCH = 72
STYLE = {
    "svg.fonttype": "none",  # text stays text: small, selectable, in the page's own font
    "svg.hashsalt": "fedapp",
    "font.size": 12.0,
    "text.color": ROLES["ink"],
    "text.parse_math": False,
    "axes.edgecolor": ROLES["line"],
    "axes.labelcolor": ROLES["muted"],
    "axes.labelsize": 11.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.axisbelow": True,
    "grid.color": ROLES["line"],
    "grid.linewidth": 0.8,
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "xtick.color": ROLES["muted"],
    "ytick.color": ROLES["muted"],
    "xtick.bottom": False,
    "ytick.left": False,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "lines.markersize": 5.0,
    "legend.frameon": False,
}
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_DECIMALS = re.compile(r"(\d+\.\d\d)\d+")
_FONT_FAMILY = re.compile(r"font-family: [^;]*;? ?|font: [^;]*?(?=\d)|stroke-opacity: 1;? ?")
_REFERENCE = re.compile(r"#([\w-]+)")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of the given size in SVG units (CSS pixels when shown at 1:1)."""
    return Figure(figsize=(width / UNITS_PER_INCH, height / UNITS_PER_INCH), layout=None)


def to_svg(figure: Figure, key: str, title: str, description: str) -> Html:
    """Render a figure.

    Parameters
    ----------
    figure : Figure
        Drawn in the colours of ``ROLES`` under ``STYLE``.
    key : str
        Unique on the page; prefix of every id.
    title, description : str
        What a screen reader says.
    """
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        FigureCanvasSVG(figure).print_svg(  # type: ignore[no-untyped-call]
            buffer, metadata={"Date": None}
        )
    root = ET.fromstring(buffer.getvalue())  # noqa: S314 - drawn above, not foreign input
    _strip(root)
    _rename_ids(root, key)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("class", "plot")
    root.set("role", "img")
    root.set("aria-labelledby", f"{key}-title {key}-desc")
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    text = ET.tostring(root, encoding="unicode")
    for role, colour in ROLES.items():
        text = text.replace(colour, f"var(--{role})")
    text = re.sub(r">\s*\n\s*<", "><", text)
    spoken = (
        f'<title id="{key}-title">{escape(title)}</title>'
        f'<desc id="{key}-desc">{escape(description)}</desc>'
    )
    head, _, rest = text.partition(">")
    return Html(f"{head}>{spoken}{rest}")


def _strip(root: ET.Element) -> None:
    """Drop metadata, the global style sheet, font families and needless decimals of positions."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
        for name in ("d", "x", "y", "width", "height", "transform", "points"):
            if name in parent.attrib:
                parent.set(name, _DECIMALS.sub(r"\1", parent.attrib[name]).strip())
        style = parent.get("style")
        if style is not None:
            parent.set("style", _FONT_FAMILY.sub("", style).strip())


def _rename_ids(root: ET.Element, key: str) -> None:
    """Keep only the ids that something refers to, made unique on the page."""
    used = {
        match
        for node in root.iter()
        for name, value in node.attrib.items()
        if name != "id" and "#" in value
        for match in _REFERENCE.findall(value)
    }
    for node in root.iter():
        identity = node.attrib.pop("id", None)
        if identity in used:
            node.set("id", f"{key}-{identity}")
        for name, value in node.attrib.items():
            if name.endswith("href") or "url(#" in value:
                node.set(name, value.replace("#", f"#{key}-"))
