"""Positions of published events in their stream, for the check whether the stream still has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg

from sea_mq_worker.operators.records import PublishedRow
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries

_PAGES = 200
_SOME = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Stream sequences of the PUBLISHED rows that were read.

    Attributes:
        greatest: the greatest sequence in a row; 0: there is none.
        shared: number of rows whose sequence is also in another row.
        some: a few rows.
    """

    greatest: int = 0
    shared: int = 0
    some: Sequence[PublishedRow] = ()


async def acknowledged(pool: asyncpg.Pool, stream: str) -> Acknowledged:
    """Read the latest rows and some others."""
    sql = load_queries("checks")["acknowledged"]
    [row] = await fetch(pool, sql, stream, _PAGES, _SOME)
    some = tuple(
        PublishedRow(event_id, int(seq), datetime.fromtimestamp(float(at), UTC))
        for event_id, seq, at in (one.split() for one in row["some"])
    )
    return Acknowledged(greatest=row["greatest"] or 0, shared=row["shared"], some=some)
