"""Build HTML: plots, each with a table of its figures; tables with bars; tiles. All text is escaped."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from sea_mq_worker.pipeline.jobs.report.formatting import number, printable
from sea_mq_worker.pipeline.jobs.report.plots import Plot

Cell: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in a table, with a bar below it whose length is ``part`` of the full width (0 to 1)."""

    text: str
    part: float | None = None


def text(given: str) -> str:
    """Return untrusted text as HTML; its reading direction cannot affect the text around it."""
    return f"<bdi>{escape(printable(given))}</bdi>"


def section(name: str, title: str, about: str, *content: str) -> str:
    """Return a part of the page with an anchor."""
    return (
        f'<section class="part" id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">'
        f'{escape(title)}</h2><p class="soft">{escape(about)}</p><div class="pair">{"".join(content)}</div>'
        "</section>"
    )


def card(title: str, *content: str, wide: bool = False) -> str:
    """Return a box with a heading."""
    return f'<div class="card{" wide" if wide else ""}"><h3>{escape(title)}</h3>{"".join(content)}</div>'


def empty(words: str) -> str:
    """Return a paragraph for a card that has nothing to show."""
    return f'<p class="empty">{escape(words)}</p>'


def figure(plots: dict[str, Plot], name: str, plot: Plot, *, alternative: str, table_: str) -> str:
    """Add a plot to ``plots``; return its element and a table of the same figures."""
    plots[f"plot-{name}"] = plot
    return (
        f'<figure><div class="plot" id="plot-{name}" role="img" aria-label="{escape(alternative)}"></div>'
        f"<details><summary>The figures as a table</summary>{table_}</details></figure>"
    )


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell | Figure]]) -> str:
    """Return a table; its first column has the rows' names, and numbers are aligned right."""
    body = [list(row) for row in rows]
    numeric = [all(not isinstance(row[n], str) for row in body) for n in range(len(head))]
    titles = "".join(
        f'<th scope="col"{_side(right)}>{escape(title)}</th>'
        for title, right in zip(head, numeric, strict=True)
    )
    lines = "".join(f"<tr>{_first(row[0])}{''.join(map(_cell, row[1:]))}</tr>" for row in body)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def tiles(entries: Iterable[tuple[str, str, str, str]]) -> str:
    """Return large numbers: (name, value, note, level); an empty level has no colour."""
    given = list(entries)
    longest = max((len(value) for _, value, _, _ in given), default=0)
    return (
        f'<dl class="tiles" style="--characters: {longest}">'
        + "".join(
            f"<div><dt>{escape(name)}</dt>"
            f'<dd class="{f"tone {level}" if level else "plain"}">{escape(value)}</dd>'
            f'<dd class="note">{escape(note)}</dd></div>'
            for name, value, note, level in given
        )
        + "</dl>"
    )


def _first(cell: Cell | Figure) -> str:
    return f'<th scope="row">{_content(cell)}</th>'


def _cell(cell: Cell | Figure) -> str:
    return f'<td class="{"text" if isinstance(cell, str) else "n"}">{_content(cell)}</td>'


def _content(cell: Cell | Figure) -> str:
    if isinstance(cell, Figure):
        if cell.part is None:
            return escape(cell.text)
        return f'{escape(cell.text)}<div class="bar"><i style="width:{100 * cell.part:.1f}%"></i></div>'
    return text(cell) if isinstance(cell, str) else number(cell)


def _side(right: bool) -> str:
    return ' class="n"' if right else ""
