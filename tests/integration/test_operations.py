"""Operators' changes on PostgreSQL, and what the audit has of them: ending events, and pruning the inbox."""

import uuid
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from sea_mq_worker.operators.changes import mark_dead
from sea_mq_worker.operators.prune import count_prunable, prune
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.operators.tables import SQL, audit, show_outbox
from tests.support.rows import add_event, add_message

WHO = {"actor": "ann", "reason": "the stream lost them"}
FAR_AHEAD = datetime(2100, 1, 1, tzinfo=UTC)


def ago(hours: float) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


@pytest.mark.clause("terms-16")
@pytest.mark.fault("S18")
@pytest.mark.parametrize("who", [{"actor": " "}, {"reason": ""}])
async def test_a_change_needs_an_actor_and_a_reason(pool: asyncpg.Pool, who: dict[str, str]) -> None:
    event_id = await add_event(pool, "DEAD")
    everything = "SELECT o.xmin, o.* FROM outbox_events o ORDER BY seq"
    before = await pool.fetch(everything)
    for change in (
        replay_matching(pool, OutboxFilter(), **WHO | who, cap=9),
        mark_dead(pool, [event_id], **WHO | who),
        prune(pool, "outbox", FAR_AHEAD, **WHO | who),
    ):
        with pytest.raises(ValueError, match="an actor and a reason"):
            await change
    assert await pool.fetch(everything) == before


@pytest.mark.clause("lifecycle-12", "terms-16")
async def test_pending_events_are_marked_dead_by_two_valid_transitions(pool: asyncpg.Pool) -> None:
    due, delayed = await add_event(pool), await add_event(pool, available_at=FAR_AHEAD)
    claimed, published = await add_event(pool, "CLAIMED"), await add_event(pool, "PUBLISHED")
    ended = await mark_dead(pool, [due, delayed, claimed, published, uuid.uuid4()], **WHO)
    assert ended == {due, delayed}
    states = dict(await pool.fetch("SELECT id, state FROM outbox_events"))
    assert states == {due: "DEAD", delayed: "DEAD", claimed: "CLAIMED", published: "PUBLISHED"}
    shown = await show_outbox(pool, due)
    assert shown is not None
    assert shown.last_error == "ended by ann: the stream lost them"
    [action] = await audit(pool, limit=9)
    assert (action.action, action.affected) == ("mark_dead", 2)


async def test_only_processed_and_closed_messages_older_than_asked_are_pruned(pool: asyncpg.Pool) -> None:
    await add_message(pool, received_at=ago(48), processed=True)
    closed = await add_message(pool, received_at=ago(48), dead=True)
    await pool.execute(
        "UPDATE inbox_messages SET dead_letter_reason = 'CLOSED' WHERE message_id = $1", closed
    )
    kept = {
        await add_message(pool, received_at=ago(1), processed=True),
        await add_message(pool, received_at=ago(48), dead=True),
        await add_message(pool, received_at=ago(48)),
    }
    assert (await prune(pool, "inbox", ago(24), **WHO)).deleted == 2
    assert {row["message_id"] for row in await pool.fetch("SELECT * FROM inbox_messages")} == kept


async def test_pruning_reads_range_after_range_of_pages_and_nothing_else(pool: asyncpg.Pool) -> None:
    await pool.execute("ALTER TABLE inbox_messages ALTER subject SET STORAGE PLAIN")
    await pool.execute(
        "INSERT INTO inbox_messages (message_id, subject, received_at, processed_at)"
        " SELECT gen_random_uuid(), repeat('s', 5000) || n, now() - interval '1 hour', now()"
        " FROM generate_series(1, 1300) n"
    )
    steps: list[tuple[int, int, int]] = []
    plan = await pool.fetch(f"EXPLAIN {SQL['prune_inbox'].sql}", 0, 500, ago(0), 1)
    assert any("Tid Range Scan" in row[0] for row in plan)

    soon = datetime.now(UTC) + timedelta(days=1)
    turns = iter([True, False])
    part = await count_prunable(pool, "inbox", soon, should_continue=lambda: next(turns))
    assert (part.pages, part.pages < part.pages_of) == (500, True)
    assert (await count_prunable(pool, "inbox", soon, should_continue=lambda: True)).count == 1300
    first = (await prune(pool, "inbox", soon, **WHO, cap=1)).deleted
    assert 1 <= first == part.count
    rest = await prune(pool, "inbox", soon, **WHO, on_progress=lambda *step: steps.append(step))
    assert rest.deleted == 1300 - first
    assert [done for done, _, _ in steps[:2]] == [500, 1000]
    assert steps[-1][0] == steps[-1][1]
    assert (await audit(pool, limit=1))[0].affected == rest.deleted
