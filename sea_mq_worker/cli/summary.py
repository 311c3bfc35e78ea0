"""``summary`` of outbox and inbox: what the unfinished have in common."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.support import print_json, print_table, query_database
from sea_mq_worker.domain.read_models import Group

if TYPE_CHECKING:
    from sea_mq_worker.ports.operations import Listings

READ_MAX = 50_000
"""The oldest of a queue tell why it grows, and are counted in a moment."""

GroupsOption = Annotated[int, typer.Option("--groups", min=1, help="Show at most so many of each kind.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The answer; ``read``: how many were looked at, the oldest, ``read_max`` at most."""

    read: int
    read_max: int
    groups: Sequence[Group]


def print_groups(
    question: "Callable[[Listings, int], Awaitable[Sequence[Group]]]", *, what: str, json: bool
) -> None:
    """Ask the tables for groups and print them."""
    groups = query_database(lambda tables: question(tables, READ_MAX))
    tell_groups(groups, sum(group.count for group in groups if group.kind == "state"), what=what, json=json)


def tell_groups(
    groups: Sequence[Group], read: int, *, what: str, json: bool, read_max: int = READ_MAX
) -> None:
    """Print groups, and say where not everything was looked at."""
    if json:
        print_json(Summary(read=read, read_max=read_max, groups=groups))
        return
    rows = [(group.name, group.kind, group.count, group.oldest_at) for group in groups]
    print_table(("name", "of", "count", "oldest"), rows, empty=f"no {what}")
    if read >= read_max:
        typer.echo(f"of the oldest {read_max} {what}", err=True)
