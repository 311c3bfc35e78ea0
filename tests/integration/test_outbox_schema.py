"""The database itself enforces these rules, whoever writes the SQL."""

import itertools
import secrets
import uuid
from typing import Any

import asyncpg
import pytest

from sea_mq_worker.producer import ORDERING_KEY_BYTES_MAX
from tests.support.rows import add_event

STATES = ("PENDING", "CLAIMED", "PUBLISHED", "DEAD")
VALID = {
    ("PENDING", "CLAIMED"),
    ("CLAIMED", "PUBLISHED"),
    ("CLAIMED", "PENDING"),
    ("CLAIMED", "DEAD"),
    ("PUBLISHED", "PENDING"),
    ("DEAD", "PENDING"),
}
SET = {
    "PENDING": "state = 'PENDING', claimed_at = NULL, claimed_by = NULL, published_at = NULL",
    "CLAIMED": (
        "state = 'CLAIMED', claimed_at = coalesce(claimed_at, now()), claimed_by = 'w', published_at = NULL,"
        " publish_attempts = publish_attempts + 1"
    ),
    "PUBLISHED": (
        "state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL,"
        " published_at = coalesce(published_at, now())"
    ),
    "DEAD": "state = 'DEAD', claimed_at = NULL, claimed_by = NULL, published_at = NULL",
}
WAY = {
    "PENDING": (),
    "CLAIMED": ("CLAIMED",),
    "PUBLISHED": ("CLAIMED", "PUBLISHED"),
    "DEAD": ("CLAIMED", "DEAD"),
    "PENDING again": ("CLAIMED", "PENDING"),
}
"""How an event gets into a state."""

BASE = (
    "INSERT INTO outbox_events"
    " (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at)"
    " VALUES ($1, 'order', 'o-1', $2, 1, '{\"n\": 1}', now() + $3 * interval '1 second')"
)
"""SDS-047's columns only."""

OTHER_VALUE = {
    "id": "gen_random_uuid()",
    "aggregate_type": "'other'",
    "aggregate_id": "'other'",
    "event_type": "'other'",
    "event_version": "2",
    "payload": "'{}'",
    "occurred_at": "occurred_at - interval '1 day'",
    "correlation_id": "gen_random_uuid()",
    "causation_id": "gen_random_uuid()",
    "seq": "DEFAULT",
    "created_at": "created_at - interval '1 day'",
    "partition_key": "'other'",
    "ordering_key": "'other'",
    "headers": "'{}'",
    "metadata": "'{}'",
}


async def add(plain: asyncpg.Connection, *, occurred_in: float = 0.0, state: str = "PENDING") -> uuid.UUID:
    event_id = uuid.uuid4()
    await plain.execute(BASE, event_id, "order.created", occurred_in)
    for step in WAY[state]:
        await change(plain, event_id, SET[step])
    return event_id


async def change(plain: asyncpg.Connection, event_id: uuid.UUID, assignments: str) -> None:
    await plain.execute(f"UPDATE outbox_events SET {assignments} WHERE id = $1", event_id)


async def value(plain: asyncpg.Connection, event_id: uuid.UUID, expression: str) -> Any:
    return await plain.fetchval(f"SELECT {expression} FROM outbox_events WHERE id = $1", event_id)


# --- what SDS-047 asks for


@pytest.mark.clause("event-model-02", "OutboxEvent")
async def test_the_base_columns_have_the_specified_types_and_defaults(plain: asyncpg.Connection) -> None:
    rows = await plain.fetch(
        "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_name = 'outbox_events'"
    )
    specified = [
        ("id", "uuid", "NO", None),
        ("aggregate_type", "text", "NO", None),
        ("aggregate_id", "text", "NO", None),
        ("event_type", "text", "NO", None),
        ("event_version", "integer", "NO", "1"),
        ("payload", "jsonb", "NO", None),
        ("occurred_at", "timestamp with time zone", "NO", "now()"),
        ("correlation_id", "uuid", "YES", None),
        ("causation_id", "uuid", "YES", None),
        ("published_at", "timestamp with time zone", "YES", None),
        ("publish_attempts", "integer", "NO", "0"),
        ("publish_error", "text", "YES", None),
    ]
    assert [column for column in specified if column not in map(tuple, rows)] == []


@pytest.mark.clause("OutboxEvent-indexes")
@pytest.mark.parametrize(
    ("index", "definition"),
    [
        ("idx_outbox_unpublished", "USING btree (occurred_at) WHERE (published_at IS NULL)"),
        ("idx_outbox_correlation", "USING btree (correlation_id)"),
    ],
)
async def test_the_outbox_has_the_specified_indexes(
    plain: asyncpg.Connection, index: str, definition: str
) -> None:
    found = await plain.fetchval("SELECT pg_get_indexdef($1::text::regclass)", index)
    assert found.endswith(f"ON public.outbox_events {definition}")


# --- what a producer may insert


@pytest.mark.clause("event-model-01", "event-model-24", "OutboxEvent")
async def test_a_producer_that_knows_only_the_base_columns_works(plain: asyncpg.Connection) -> None:
    event_id = await add(plain)
    row = await plain.fetchrow("SELECT * FROM outbox_events WHERE id = $1", event_id)
    assert (row["state"], row["publish_attempts"], row["published_at"]) == ("PENDING", 0, None)
    assert row["created_at"] == row["available_at"] == row["occurred_at"]


@pytest.mark.clause("POL-047-001")
@pytest.mark.parametrize(("event_id", "event_type"), [(None, "order.created"), (uuid.uuid4(), None)])
async def test_an_event_without_id_or_type_is_refused_with_the_policys_code(
    plain: asyncpg.Connection, event_id: uuid.UUID | None, event_type: str | None
) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="INVALID_OUTBOX"):
        await plain.execute(BASE, event_id, event_type, 0)


@pytest.mark.clause("OutboxEvent-check", "POL-047-002")
async def test_an_event_of_the_future_is_refused_with_the_policys_code(plain: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="FUTURE_EVENT"):
        await add(plain, occurred_in=61)


async def test_a_time_outside_the_calendar_is_refused(plain: asyncpg.Connection) -> None:
    insert = (
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, {})"
        " VALUES (gen_random_uuid(), 'order', 'o-1', 'order.created', '{{}}', '{}')"
    )
    before, behind = "0001-01-01 00:00:00+02", "10000-01-01"
    times = [
        ("occurred_at", before),
        ("available_at", before),
        ("available_at", behind),
        ("created_at", behind),
    ]
    for column, moment in times:
        with pytest.raises(asyncpg.CheckViolationError, match="INVALID_OUTBOX"):
            await plain.execute(insert.format(column, moment))


async def test_an_ordering_key_that_no_index_could_hold_is_refused_by_its_limit(
    plain: asyncpg.Connection,
) -> None:
    incompressible = secrets.token_hex(ORDERING_KEY_BYTES_MAX // 2)
    await add_event(plain, ordering_key=incompressible)
    for too_long in (incompressible + "x", "ä" * (ORDERING_KEY_BYTES_MAX // 2) + "x"):
        with pytest.raises(asyncpg.CheckViolationError, match=r"INVALID_OUTBOX: ordering_key .*2048 bytes"):
            await add_event(plain, ordering_key=too_long)


@pytest.mark.clause("event-model-24", "OutboxEvent-check", "POL-047-002")
async def test_an_event_inside_the_tolerance_is_due_when_it_has_occurred(plain: asyncpg.Connection) -> None:
    event_id = await add(plain, occurred_in=40)
    assert await value(plain, event_id, "available_at = occurred_at")
    with pytest.raises(asyncpg.CheckViolationError, match="not in the lifecycle"):
        await change(plain, event_id, SET["CLAIMED"])


@pytest.mark.clause("event-model-02")
async def test_an_id_is_used_once(plain: asyncpg.Connection) -> None:
    event_id = await add(plain)
    with pytest.raises(asyncpg.UniqueViolationError):
        await plain.execute(BASE, event_id, "order.created", 0)


@pytest.mark.clause("event-model-12")
async def test_created_at_is_never_missing(plain: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.NotNullViolationError):
        await add_event(plain, created_at=None)


@pytest.mark.clause("event-model-11")
@pytest.mark.parametrize("given", [{"publish_attempts": 1}, {"failures": 1}, {"state": "DEAD"}])
async def test_an_event_starts_pending_and_without_attempts(
    plain: asyncpg.Connection, given: dict[str, Any]
) -> None:
    columns = ", ".join(["id, aggregate_type, aggregate_id, event_type, payload", *given])
    values = "gen_random_uuid(), 'order', 'o-1', 'order.created', '{}', $1"
    with pytest.raises(asyncpg.CheckViolationError, match="starts PENDING"):
        await plain.execute(f"INSERT INTO outbox_events ({columns}) VALUES ({values})", *given.values())


# --- the lifecycle


@pytest.mark.clause("event-model-11", "event-model-33", "event-model-26")
@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
async def test_only_the_lifecycles_transitions_are_possible(
    plain: asyncpg.Connection, before: str, after: str
) -> None:
    event_id = await add(plain, state=before)
    if before == after or (before, after) in VALID:
        await change(plain, event_id, SET[after])
        assert await value(plain, event_id, "state") == after
    else:
        with pytest.raises(asyncpg.CheckViolationError, match="not in the lifecycle"):
            await change(plain, event_id, SET[after])
        assert await value(plain, event_id, "state") == before


@pytest.mark.clause("event-model-33", "event-model-21", "event-model-26", "event-model-30")
@pytest.mark.parametrize(
    ("state", "assignments"),
    [
        pytest.param(
            "PENDING", "state = 'CLAIMED', claimed_at = now(), claimed_by = 'w'", id="uncounted claim"
        ),
        pytest.param("CLAIMED", "claimed_by = 'another'", id="claim of another"),
        pytest.param("PUBLISHED", "published_at = published_at + interval '1 second'", id="later time"),
        *(pytest.param(way, "publish_attempts = 0", id=f"fewer attempts, {way}") for way in list(WAY)[1:]),
    ],
)
async def test_a_change_within_a_state_that_the_lifecycle_does_not_have_is_refused(
    plain: asyncpg.Connection, state: str, assignments: str
) -> None:
    event_id = await add(plain, state=state)
    with pytest.raises(asyncpg.CheckViolationError, match="not in the lifecycle"):
        await change(plain, event_id, assignments)


@pytest.mark.clause("event-model-10")
async def test_there_is_no_other_state(plain: asyncpg.Connection) -> None:
    event_id = await add(plain)
    with pytest.raises(asyncpg.CheckViolationError, match="chk_outbox_state"):
        await change(plain, event_id, "state = 'LOST'")


# --- invariants


@pytest.mark.clause(
    "event-model-23", "event-model-26", "event-model-30", "lifecycle-12", "CMD-050-precondition"
)
@pytest.mark.parametrize(
    ("state", "broken", "constraint"),
    [
        ("PENDING", "claimed_at = now()", "chk_outbox_claimed"),
        ("CLAIMED", "claimed_at = NULL", "chk_outbox_claimed"),
        ("PENDING", "claimed_by = 'w'", "chk_outbox_claimed"),
        ("CLAIMED", "claimed_by = NULL", "chk_outbox_claimed"),
        ("DEAD", "published_at = now()", "chk_outbox_published"),
        ("PUBLISHED", "published_at = NULL", "chk_outbox_published"),
    ],
)
async def test_claimed_at_claimed_by_and_published_at_mean_their_state(
    plain: asyncpg.Connection, state: str, broken: str, constraint: str
) -> None:
    event_id = await add(plain, state=state)
    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        await change(plain, event_id, broken)


@pytest.mark.clause("event-model-02", "event-model-08", "event-model-06", "event-model-33")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("column", list(OTHER_VALUE))
async def test_an_immutable_column_never_changes(plain: asyncpg.Connection, column: str, state: str) -> None:
    event_id = await add(plain, state=state)
    before = await value(plain, event_id, column)
    with pytest.raises(asyncpg.CheckViolationError, match="immutable"):
        await change(plain, event_id, f"{column} = {OTHER_VALUE[column]}")
    assert await value(plain, event_id, column) == before


@pytest.mark.fault("O04")
@pytest.mark.parametrize(
    "assignment",
    [
        "NEW.payload := '{\"masked\": true}'",
        'NEW.headers := \'{"a": "b"}\'',
        "NEW.event_type := 'other'",
        "NEW.occurred_at := NEW.occurred_at - interval '1 s'",
        "NEW.event_version := 2",
    ],
)
@pytest.mark.parametrize("name", ["a_foreign", "zz_foreign"])
async def test_no_foreign_trigger_changes_an_event_under_a_claim(
    plain: asyncpg.Connection, assignment: str, name: str
) -> None:
    event_id = await add(plain)
    before = await value(plain, event_id, "to_jsonb(outbox_events)")
    await plain.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
        f" AS $$ BEGIN {assignment}; RETURN NEW; END $$;"
        f"CREATE TRIGGER {name} BEFORE UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION {name}()"
    )
    with pytest.raises(asyncpg.CheckViolationError, match="not even by a trigger"):
        await change(plain, event_id, SET["CLAIMED"])
    assert await value(plain, event_id, "to_jsonb(outbox_events)") == before


async def test_an_update_that_names_an_immutable_column_but_keeps_it_is_fine(
    plain: asyncpg.Connection,
) -> None:
    """As object-relational mappers write them."""
    event_id = await add(plain)
    await change(plain, event_id, "payload = payload, available_at = now()")


# --- nothing is lost


@pytest.mark.clause("lifecycle-29")
@pytest.mark.parametrize("state", STATES)
async def test_only_a_terminal_event_can_be_deleted(plain: asyncpg.Connection, state: str) -> None:
    event_id = await add(plain, state=state)
    if state in {"PUBLISHED", "DEAD"}:
        await plain.execute("DELETE FROM outbox_events WHERE id = $1", event_id)
    else:
        with pytest.raises(asyncpg.CheckViolationError, match="cannot be deleted"):
            await plain.execute("DELETE FROM outbox_events WHERE id = $1", event_id)


@pytest.mark.clause("lifecycle-29")
async def test_a_table_with_open_events_cannot_be_truncated(plain: asyncpg.Connection) -> None:
    event_id = await add(plain, state="CLAIMED")
    with pytest.raises(asyncpg.CheckViolationError, match="not published or dead"):
        await plain.execute("TRUNCATE outbox_events")
    await change(plain, event_id, SET["PUBLISHED"])
    await plain.execute("TRUNCATE outbox_events")


async def test_an_error_never_prints_the_payload(plain: asyncpg.Connection) -> None:
    """A CHECK would print the whole row as DETAIL; these are triggers."""
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await add(plain, occurred_in=61)
    assert '"n"' not in str(caught.value)
