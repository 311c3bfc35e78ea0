"""Tables that fit the terminal: what names a row stays whole, the rest shrinks, or stands below it."""

from collections.abc import Iterator, Sequence
from datetime import datetime

_GAP = "  "
_CUT = "\u2026"
_NARROW = 12
"""No column is cut below this."""


def cell(value: object) -> str:
    """Write a value for people, on one line."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return plain("" if value is None else str(value))


def plain(text: str) -> str:
    """Escape what a terminal would act upon."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None) -> Iterator[str]:
    """Yield the lines of a table that is at most ``width`` wide; None: as wide as it wants to be.

    The first column names the row, as by an id that is to be copied.
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
    """Take from the widest columns but the first; None: there is not room enough."""
    found = list(widths)
    while sum(found) > room:
        widest = max(range(1, len(found)), key=lambda place: found[place], default=0)
        if found[widest] <= _NARROW or not widest:
            return None
        found[widest] -= 1
    return found


def _block(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Yield the name of a row, and below it what else there is, as much on a line as there is room for."""
    yield row[0]
    line = ""
    for column, text in zip(columns[1:], row[1:], strict=True):
        if not text:
            continue
        told = _cut(f"{column} {text}", width - len(_GAP))
        if line and len(line) + len(_GAP) + len(told) > width:
            yield line
            line = ""
        line += f"{_GAP}{told}"
    if line:
        yield line


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + _CUT
