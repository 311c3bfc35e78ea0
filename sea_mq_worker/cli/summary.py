"""``summary`` of outbox, inbox and dead letters: the largest groups."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.support import print_json, print_table, query_database
from sea_mq_worker.domain.read_models import Group

if TYPE_CHECKING:
    from sea_mq_worker.operations.database import Tables

READ_MAX = 50_000
"""Cap on rows that a summary reads: the oldest show why a queue grows, and take about a second."""

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
