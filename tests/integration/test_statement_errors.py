"""Errors of statements: a statement that is too long, an outage, a refused row, a mistake of the program."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from sea_mq_worker.errors import (
    ContractError,
    RowsRefusedError,
    StatementTooLongError,
    StoreTooSlowError,
    StoreUnavailableError,
)
from sea_mq_worker.postgres.errors import ReplicaIdentityError, TableMissingError
from sea_mq_worker.postgres.pool import fetch
from tests.support.rows import add_event, opened
from tests.support.servers import Database

GERMAN = "RAISE 'storniere Anfrage wegen Zeitüberschreitung der Anfrage' USING ERRCODE = '57014'"
TWICE = "INSERT INTO sea_mq_context (context) VALUES ('x') ON CONFLICT (context) DO NOTHING"
CHANGE = "UPDATE outbox_events SET publish_error = 'x'"


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[asyncpg.Pool]:
    """Statements may take 0.2 s."""
    async with opened(database, statement_timeout_seconds=0.2) as made:
        yield made


async def test_a_statement_that_takes_too_long_asks_for_a_smaller_one(pool: asyncpg.Pool) -> None:
    with pytest.raises(StatementTooLongError, match="57014"):
        await fetch(pool, "SELECT pg_sleep(30)")
    with pytest.raises(StatementTooLongError, match="storniere"):  # in every language of the server
        await fetch(pool, f"DO $$ BEGIN {GERMAN}; END $$")
    with pytest.raises(StoreUnavailableError, match="57014") as cancelled:  # by somebody
        await fetch(pool, "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(0.1)")
    assert not isinstance(cancelled.value, StoreTooSlowError)


async def test_a_statement_with_too_many_arguments_is_a_mistake_and_no_outage(pool: asyncpg.Pool) -> None:
    with pytest.raises(asyncpg.InterfaceError, match="expects 1 argument for this query, 2 were passed"):
        await fetch(pool, "SELECT $1::int", 1, 2)


@pytest.mark.parametrize(
    ("kind", "value", "said"), [("int", 4_000_000_001, "out of range"), ("text", "\udcff", "not UTF-8")]
)
async def test_a_value_that_its_column_cannot_hold_is_a_refused_row_and_is_not_quoted(
    kind: str, value: object, said: str, pool: asyncpg.Pool
) -> None:
    with pytest.raises(RowsRefusedError, match=said) as refused:
        await fetch(pool, f"SELECT $1::{kind}", value)
    assert str(value) not in str(refused.value)


# --- a remedy is for the cause that the server names


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("INSERT INTO no_table VALUES (1)", "42P01"),
        ("PERFORM NEW.no_column", "42703"),
        ("PERFORM no_function()", "42883"),
        ("PERFORM NULL::no_type", "42704"),
        (TWICE, "42P10"),
    ],
)
async def test_what_a_foreign_trigger_lacks_no_migration_brings(
    pool: asyncpg.Pool, plain: asyncpg.Connection, body: str, state: str
) -> None:
    await add_event(plain)
    await plain.execute(
        f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NULL; END $$;"
        "CREATE TRIGGER note AFTER UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION note()"
    )
    with pytest.raises(RowsRefusedError, match=rf"{state}\): fix the trigger") as refused:
        await fetch(pool, CHANGE)
    assert "migrate" not in str(refused.value)


async def test_what_the_schema_lacks_a_migration_brings(
    pool: asyncpg.Pool, plain: asyncpg.Connection
) -> None:
    with pytest.raises(ContractError, match=r"42P10\): an index is missing; run .*migrate"):
        await fetch(pool, TWICE)
    await plain.execute("DROP TABLE handled_messages")
    with pytest.raises(TableMissingError, match=r"a table is missing; run .*migrate"):
        await fetch(pool, "DELETE FROM inbox_messages")


PUBLISHED = "CREATE PUBLICATION others FOR TABLE outbox_events"
UNFIT = {
    "no identity": (
        15,
        f"ALTER TABLE outbox_events REPLICA IDENTITY NOTHING; {PUBLISHED}",
        "ALTER TABLE outbox_events REPLICA IDENTITY USING INDEX outbox_events_pkey",
    ),
    "a filter by another column": (
        15,
        f"{PUBLISHED} WHERE (event_type = 'x')",
        "ALTER PUBLICATION others SET TABLE outbox_events WHERE (id IS NOT NULL)",
    ),
    "a list without the id": (
        15,
        f"{PUBLISHED} (payload)",
        "ALTER PUBLICATION others SET TABLE outbox_events (id, payload)",
    ),
    "a generated column that is not published": (
        18,
        f"ALTER TABLE outbox_events REPLICA IDENTITY FULL; {PUBLISHED}",
        "ALTER PUBLICATION others SET (publish_generated_columns = stored)",
    ),
}
"""Since which version it is possible, how it comes about, and what the finding of doctor says against it."""


@pytest.mark.fault("O03")
@pytest.mark.parametrize(("since", "unfit", "fit"), UNFIT.values(), ids=UNFIT)
async def test_a_publication_that_lets_no_row_change_is_no_missing_index(
    pool: asyncpg.Pool, plain: asyncpg.Connection, since: int, unfit: str, fit: str
) -> None:
    if plain.get_server_version().major < since:
        pytest.skip("this PostgreSQL has no such publications")
    await add_event(plain)
    await plain.execute(unfit)
    with pytest.raises(ReplicaIdentityError, match="replica identity and a publication") as refused:
        await fetch(pool, CHANGE)
    assert "migrate" not in str(refused.value)
    await plain.execute(fit)
    await fetch(pool, CHANGE)
