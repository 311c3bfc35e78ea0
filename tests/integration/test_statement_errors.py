"""Errors of statements: a statement that is too long, an outage, a refused row, a mistake of the program."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from sea_mq_worker.adapters.postgres.connection import fetch
from sea_mq_worker.domain.errors import (
    RowsRefusedError,
    StatementTooLongError,
    StoreTooSlowError,
    StoreUnavailableError,
)
from tests.support.rows import opened
from tests.support.servers import Database


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    """Statements may take 0.2 s."""
    async with opened(database, statement_timeout_seconds=0.2) as made:
        yield made


async def test_a_statement_that_takes_too_long_asks_for_a_smaller_one(pool: asyncpg.Pool) -> None:
    with pytest.raises(StatementTooLongError, match="57014"):
        await fetch(pool, "SELECT pg_sleep(30)")


async def test_a_statement_is_too_long_in_every_language_of_the_server(pool: asyncpg.Pool) -> None:
    german = "RAISE 'storniere Anfrage wegen Zeitüberschreitung der Anfrage' USING ERRCODE = '57014'"
    with pytest.raises(StatementTooLongError, match="storniere"):
        await fetch(pool, f"DO $$ BEGIN {german}; END $$")


async def test_a_statement_that_somebody_cancels_was_not_too_long(pool: asyncpg.Pool) -> None:
    with pytest.raises(StoreUnavailableError, match="57014") as cancelled:
        await fetch(pool, "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(0.1)")
    assert not isinstance(cancelled.value, StoreTooSlowError)


async def test_a_lock_that_is_held_too_long_is_an_outage(
    pool: asyncpg.Pool, plain: asyncpg.Connection
) -> None:
    async with plain.transaction():
        await plain.execute("LOCK TABLE outbox_events")
        with pytest.raises(StoreUnavailableError, match="55P03"):
            await fetch(pool, "SELECT FROM outbox_events")


async def test_a_statement_with_too_many_arguments_is_a_mistake_and_no_outage(pool: asyncpg.Pool) -> None:
    with pytest.raises(asyncpg.InterfaceError, match="expects 1 argument for this query, 2 were passed"):
        await fetch(pool, "SELECT $1::int", 1, 2)


async def test_a_value_that_its_column_cannot_hold_is_a_refused_row_and_is_not_quoted(
    pool: asyncpg.Pool,
) -> None:
    with pytest.raises(RowsRefusedError, match="out of range") as refused:
        await fetch(pool, "SELECT $1::int", 4_000_000_001)
    assert "4000000001" not in str(refused.value)
    with pytest.raises(RowsRefusedError, match="not UTF-8"):
        await fetch(pool, "SELECT $1::text", "\udcff")
