"""The inbox table itself refuses these rows, whoever writes them (SDS-047 2.2)."""

import uuid

import asyncpg
import pytest

INSERT = "INSERT INTO inbox_messages (message_id, subject) VALUES ($1, 'vibespro.event.vibe_created.v1')"


@pytest.fixture
async def message_id(plain: asyncpg.Connection) -> uuid.UUID:
    made = uuid.uuid4()
    await plain.execute(INSERT, made)
    return made


@pytest.mark.clause("InboxMessage")
async def test_the_base_columns_have_the_specified_names_types_and_defaults(
    plain: asyncpg.Connection,
) -> None:
    rows = await plain.fetch(
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


@pytest.mark.clause("InboxMessage-index")
async def test_the_unprocessed_have_their_index(plain: asyncpg.Connection) -> None:
    definition = await plain.fetchval("SELECT pg_get_indexdef('idx_inbox_unprocessed'::regclass)")

    assert definition.endswith(
        "ON public.inbox_messages USING btree (received_at) WHERE (processed_at IS NULL)"
    )


@pytest.mark.clause("POL-047-003", "CMD-051-precondition")
async def test_a_message_id_is_unique(plain: asyncpg.Connection, message_id: uuid.UUID) -> None:
    with pytest.raises(asyncpg.UniqueViolationError, match="DUPLICATE_MESSAGE"):
        await plain.execute(INSERT, message_id)


@pytest.mark.clause("POL-047-003")
async def test_a_message_id_is_required(plain: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.NotNullViolationError):
        await plain.execute(INSERT, None)


@pytest.mark.clause("POL-047-004")
async def test_a_message_is_not_processed_before_it_is_received(
    plain: asyncpg.Connection, message_id: uuid.UUID
) -> None:
    processed = "UPDATE inbox_messages SET processed_at = received_at + $1 * interval '1 microsecond'"

    with pytest.raises(asyncpg.CheckViolationError, match="INVALID_TIMESTAMP"):
        await plain.execute(processed, -1)
    await plain.execute(processed, 0)
    await plain.execute(processed, 1)


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
    plain: asyncpg.Connection, message_id: uuid.UUID, change: str, constraint: str
) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        await plain.execute(f"UPDATE inbox_messages SET {change}")
