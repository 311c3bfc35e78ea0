"""Read the stream sequences of published events from a bounded number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.adapters.postgres.queries import load_queries

_PAGES = 200
_SOME = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Stream sequences of the PUBLISHED rows that were read.

    Attributes:
        greatest: the greatest sequence in a row; 0: there is none.
        shared: number of rows whose sequence is also in another row.
        some: id and sequence of a few rows.
    """

    greatest: int = 0
    shared: int = 0
    some: Sequence[tuple[str, int]] = ()


async def acknowledged(pool: asyncpg.Pool, stream: str) -> Acknowledged:
    """Read the latest rows and some others; raises what ``translated`` raises."""
    sql = load_queries("ghosts", "acknowledged")["acknowledged"]
    [row] = await fetch(pool, sql, stream, _PAGES, _SOME)
    some = tuple((event_id, int(seq)) for event_id, seq in (one.split() for one in row["some"]))
    return Acknowledged(greatest=row["greatest"] or 0, shared=row["shared"], some=some)
