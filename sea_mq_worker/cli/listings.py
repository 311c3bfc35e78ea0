"""Pages of `outbox list` and `inbox list`, and `summary`: the largest groups."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from sea_mq_worker.cli.support import echo_safe, print_json, print_page, print_table, query_database
from sea_mq_worker.cli.table_format import cell
from sea_mq_worker.domain.read_models import Group, Page

if TYPE_CHECKING:
    from sea_mq_worker.operations.database import Tables

READ_MAX = 50_000
"""Cap on rows that a summary reads: the oldest show why a queue grows, and take about a second."""

AfterOption = Annotated[
    UUID | None, typer.Option("--after", metavar="ID", help="Start the page after this ID.")
]
ReadOption = Annotated[
    int, typer.Option("--read", min=0, metavar="N", help="Read at most N rows, newest first (0: no limit).")
]
GroupsOption = Annotated[
    int, typer.Option("--groups", min=1, help="Show at most N groups of each kind.", metavar="N")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Output; ``read``: rows that were read, oldest first, at most ``read_max``."""

    read: int
    read_max: int
    groups: Sequence[Group]


def print_groups(
    query: "Callable[[Tables, int], Awaitable[Sequence[Group]]]", *, what: str, json: bool
) -> None:
    groups = query_database(lambda tables: query(tables, READ_MAX))
    print_summary(groups, sum(group.count for group in groups if group.kind == "state"), what=what, json=json)


def print_summary(
    groups: Sequence[Group], read: int, *, what: str, json: bool, read_max: int = READ_MAX
) -> None:
    """Print groups, and a note if rows were left unread."""
    if json:
        print_json(Summary(read=read, read_max=read_max, groups=groups))
        return
    rows = [(group.name, group.kind, group.count, group.oldest_at) for group in groups]
    print_table(("name", "of", "count", "oldest"), rows, empty=f"no {what}")
    if read >= read_max:
        typer.echo(f"of the oldest {read_max} {what}", err=True)


def print_list(page: Page[Any], columns: Sequence[str], *, what: str, json: bool) -> None:
    """Print a page, the start of the next one, and how many of ``what`` were read if not all."""
    if page.read is None or page.next_after is None:
        print_page(page.rows, columns, json=json, empty=f"no {what}", more=page.next_after)
        return
    print_page(page.rows, columns, json=json, empty=f"none of {page.read} {what}")
    echo_safe(
        f"read {page.read} {what}, back to {cell(page.reached)}: continue with --after {page.next_after}, "
        "or read more with --read",
        err=True,
    )
