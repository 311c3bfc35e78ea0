"""Tables that fit the terminal: the first column stays whole, the others shrink or move below it."""

from collections.abc import Iterator, Sequence
from datetime import datetime

_GAP = "  "
_CUT = "\u2026"
_NARROW = 12
"""Characters: no column is cut below this width, so that its text stays useful."""


def cell(value: object) -> str:
    """Format a value for people, on one line."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return plain("" if value is None else str(value))


def plain(text: str) -> str:
    """Escape control characters that a terminal would interpret."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None) -> Iterator[str]:
    """Yield the lines of a table that is at most ``width`` wide; None: no limit.

    The first column is never cut: it identifies the row, often by an ID to copy.
    """
    cells = [tuple(map(cell, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    if width is not None:
        room = width - len(_GAP) * (len(widths) - 1)
        shrunk = _shrunk(widths, room)
        if shrunk is None:
            for row in cells:
                yield from _block(columns, row, width)
            return
        widths = shrunk
    for row in [tuple(columns), *cells]:
        parts = (f"{_cut(text, wide):<{wide}}" for text, wide in zip(row, widths, strict=True))
        yield _GAP.join(parts).rstrip()


def _shrunk(widths: Sequence[int], room: int) -> list[int] | None:
    """Shrink the widest columns except the first; None: the room is too small."""
    found = list(widths)
    while sum(found) > room:
        widest = max(range(1, len(found)), key=lambda place: found[place], default=0)
        if found[widest] <= _NARROW or not widest:
            return None
        found[widest] -= 1
    return found


def _block(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Yield the first column, and the other columns on lines below it."""
    yield row[0]
    line = ""
    for column, text in zip(columns[1:], row[1:], strict=True):
        if not text:
            continue
        part = _cut(f"{column} {text}", width - len(_GAP))
        if line and len(line) + len(_GAP) + len(part) > width:
            yield line
            line = ""
        line += f"{_GAP}{part}"
    if line:
        yield line


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + _CUT
