"""What rows of published events say of their stream, by a bounded look at the table."""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries

_PAGES = 200
_SOME = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Rows that are PUBLISHED, as far as they were looked at.

    Attributes:
        greatest: sequence that a row names; 0: there is none.
        shared: how many rows name a sequence that another row names, too.
        some: id and sequence of a few.
    """

    greatest: int = 0
    shared: int = 0
    some: Sequence[tuple[str, int]] = ()


async def acknowledged(pool: asyncpg.Pool, stream: str) -> Acknowledged:
    """Look at the latest rows and some others; raises what ``translated`` raises."""
    sql = load_queries("ghosts", "acknowledged")["acknowledged"]
    [row] = await fetch(pool, sql, stream, _PAGES, _SOME)
    some = tuple((event_id, int(seq)) for event_id, seq in (one.split() for one in row["some"]))
    return Acknowledged(greatest=row["greatest"] or 0, shared=row["shared"], some=some)
