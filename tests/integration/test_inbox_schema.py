"""What the inbox table itself refuses, whoever writes to it (SDS-047 2.2)."""

import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.servers import Database

INSERT = "INSERT INTO inbox_messages (message_id, subject) VALUES ($1, 'vibespro.event.vibe_created.v1')"


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(database.dsn)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def message_id(connection: asyncpg.Connection) -> uuid.UUID:
    made = uuid.uuid4()
    await connection.execute(INSERT, made)
    return made


@pytest.mark.clause("SDS-047: InboxMessage's fields")
async def test_the_base_columns_have_the_specified_names_types_and_defaults(
    connection: asyncpg.Connection,
) -> None:
    rows = await connection.fetch(
        "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_name = 'inbox_messages' ORDER BY ordinal_position LIMIT 6"
    )

    assert [tuple(row) for row in rows] == [
        ("message_id", "uuid", "NO", None),
        ("subject", "text", "NO", None),
        ("received_at", "timestamp with time zone", "NO", "now()"),
        ("processed_at", "timestamp with time zone", "YES", None),
        ("attempts", "integer", "NO", "0"),
        ("last_error", "text", "YES", None),
    ]


@pytest.mark.clause("SDS-047: idx_inbox_unprocessed")
async def test_the_unprocessed_have_their_index(connection: asyncpg.Connection) -> None:
    definition = await connection.fetchval("SELECT pg_get_indexdef('idx_inbox_unprocessed'::regclass)")

    assert definition.endswith(
        "ON public.inbox_messages USING btree (received_at) WHERE (processed_at IS NULL)"
    )


@pytest.mark.clause("SDS-047: InboxMessage's fields")
async def test_a_row_of_the_base_columns_alone_is_complete(
    connection: asyncpg.Connection, message_id: uuid.UUID
) -> None:
    row = await connection.fetchrow("SELECT * FROM inbox_messages WHERE message_id = $1", message_id)

    assert (row["attempts"], row["processed_at"], row["last_error"]) == (0, None, None)
    assert row["received_at"] is not None


@pytest.mark.clause("POL-047-003")
async def test_a_message_id_is_unique(connection: asyncpg.Connection, message_id: uuid.UUID) -> None:
    with pytest.raises(asyncpg.UniqueViolationError, match="DUPLICATE_MESSAGE"):
        await connection.execute(INSERT, message_id)


@pytest.mark.clause("POL-047-003")
async def test_a_message_id_is_required(connection: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.NotNullViolationError):
        await connection.execute(INSERT, None)


@pytest.mark.clause("POL-047-004")
async def test_a_message_is_not_processed_before_it_is_received(
    connection: asyncpg.Connection, message_id: uuid.UUID
) -> None:
    processed = "UPDATE inbox_messages SET processed_at = received_at + $1 * interval '1 microsecond'"

    with pytest.raises(asyncpg.CheckViolationError, match="INVALID_TIMESTAMP"):
        await connection.execute(processed, -1)
    await connection.execute(processed, 0)
    await connection.execute(processed, 1)


DEAD_LETTERED = "dead_letter_reason = 'R', dead_letter_begun_at = now(), dead_lettered_at = now()"


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        (f"processed_at = now(), {DEAD_LETTERED}", "chk_inbox_settled_once"),
        ("attempts = -1", "chk_inbox_attempts"),
        ("locked_by = 'w'", "chk_inbox_lease"),
        ("locked_until = now()", "chk_inbox_lease"),
        ("dead_lettered_at = now()", "chk_inbox_dead_letter"),
        ("dead_lettered_at = now(), dead_letter_reason = 'R'", "chk_inbox_dead_letter"),
    ],
)
async def test_a_contradictory_row_is_refused(
    connection: asyncpg.Connection, message_id: uuid.UUID, change: str, constraint: str
) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        await connection.execute(f"UPDATE inbox_messages SET {change}")
