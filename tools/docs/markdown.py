"""Tables, and the marked parts of a page that a table stands in."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

Text = Callable[[str], str]
"""Turns the page as it is into the page as it should be."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    head, *lines = (f"| {' | '.join(cells)} |\n" for cells in (heads, *rows))
    return "".join((head, "|" + "---|" * len(heads) + "\n", *lines))


def entries(rows: Iterable[tuple[str, str]]) -> str:
    """Return a list of names with their meanings."""
    return "".join(f"- `{name}`: {meaning}\n" for name, meaning in rows)


def code(names: Iterable[str]) -> str:
    """Return names as code, with commas between them."""
    return ", ".join(f"`{name}`" for name in names)


def sections(**parts: Callable[[], str]) -> Text:
    """Return a text that replaces each part between ``<!-- name -->`` and ``<!-- end of name -->``."""
    return partial(_replaced, parts)


def whole(make: Callable[[], str]) -> Text:
    """Return a text that replaces the whole file."""
    return lambda _: make()


def _replaced(parts: dict[str, Callable[[], str]], text: str) -> str:
    for name, make in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, found_end, behind = rest.partition(end)
        if not (found and found_end):
            raise ValueError(f"the page lacks the lines {begin.strip()} and {end}")
        text = f"{before}{begin}{make()}{end}{behind}"
    return text
