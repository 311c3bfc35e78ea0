"""Horizontal bars as SVG for light and dark mode, with every figure in the description."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 800
_LABELS_END, _BARS, _BARS_WIDTH = 206, 216, 330
_ROW, _BAR = 23, 15
_STYLE = """
.card { fill: #ffffff; stroke: #d1d9e0 }
text { fill: #1f2328; font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
.head { font-size: 15px; font-weight: 600 }
.group { font-weight: 600 }
.note { fill: #59636e }
.s0 { fill: #0969da } .s1 { fill: #afb8c1 } .s2 { fill: #d4a72c }
@media (prefers-color-scheme: dark) {
  .card { fill: #0d1117; stroke: #3d444d }
  text { fill: #f0f6fc }
  .note { fill: #9198a1 }
  .s0 { fill: #4493f8 } .s1 { fill: #59636e } .s2 { fill: #d29922 }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row.

    Attributes:
        parts: lengths by series, drawn one after the other; the series "" is left blank.
        note: text after the bar.
    """

    label: str
    parts: Mapping[str, float]
    note: str

    @property
    def length(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows with a title, to a common scale."""

    title: str
    bars: Sequence[Bar]


def chart(title: str, groups: Sequence[Group], *, series: Sequence[str], one_scale: bool = True) -> str:
    """Draw the groups one below the other.

    Args:
        title: title of the chart.
        groups: groups with at least one bar each.
        series: up to three names, in the order of the legend and the colours.
        one_scale: use one scale for all groups; otherwise each group's longest bar has the full length.
    """
    longest = max(bar.length for group in groups for bar in group.bars)
    body = [_text(16, 26, title, "head"), *_legend(series)]
    top = 62
    for group in groups:
        top += 18
        body.append(_text(16, top, group.title, "group"))
        top += 8
        scale = _BARS_WIDTH / (longest if one_scale else max(bar.length for bar in group.bars))
        for bar in group.bars:
            body += _row(bar, top, scale, series)
            top += _ROW
    return _document(title, _description(groups), body, height=top + 10)


def _legend(series: Sequence[str]) -> list[str]:
    found = []
    left = 16
    for number, name in enumerate(series):
        found += [_box(left, 42, 12, 12, number), _text(left + 18, 53, name, "note")]
        left += 36 + 8 * len(name)
    return found


def _row(bar: Bar, top: float, scale: float, series: Sequence[str]) -> list[str]:
    line = top + _BAR - 3
    found = [_text(_LABELS_END, line, bar.label, "", anchor="end")]
    left = float(_BARS)
    for name, value in bar.parts.items():
        width = value * scale
        if name:
            found.append(_box(left, top, max(width, 1), _BAR, series.index(name)))
        left += width
    return [*found, _text(left + 8, line, bar.note, "note")]


def _box(left: float, top: float, width: float, height: float, number: int) -> str:
    return f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" class="s{number}"/>'


def _text(left: float, line: float, text: str, kind: str, *, anchor: str = "start") -> str:
    return f'<text x="{left:.1f}" y="{line}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _description(groups: Sequence[Group]) -> str:
    return " ".join(f"{group.title}, {bar.label}: {bar.note}." for group in groups for bar in group.bars)


def _document(title: str, description: str, body: Sequence[str], *, height: float) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        f' height="{height}" role="img" aria-labelledby="title desc">'
    )
    lines = [
        head,
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(description)}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="6" class="card"/>',
        *body,
        "</svg>\n",
    ]
    return "\n".join(lines)
