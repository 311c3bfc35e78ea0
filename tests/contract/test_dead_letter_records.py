"""The contract of DeadLetterRecords, over PostgreSQL and the in-memory fake."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from sea_mq_worker.inbox.message import AlreadySettled, Leased
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.operators.ports import DeadLetterRecords
from sea_mq_worker.operators.records import Redrive
from sea_mq_worker.operators.tables import PostgresOperations
from sea_mq_worker.ports import InboxRepository
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.testing.inbox import InboxTable, InMemoryInbox
from sea_mq_worker.testing.operators import InMemoryDeadLetterRecords
from tests.support.inboxes import entry, insert, lease
from tests.support.rows import opened
from tests.support.servers import Database

WHO: dict[str, Any] = {"actor": "ann", "reason": "the handler is fixed"}


@dataclass(kw_only=True)
class World:
    """An inbox, and an operator's records of what happens to its dead letters."""

    inbox: InboxRepository
    records: DeadLetterRecords

    async def audit(self) -> list[tuple[str, str, int]]:
        """Return each record's action, outcome and number of changes."""
        if isinstance(self.records, PostgresOperations):
            actions = list(reversed(await self.records.audit(limit=9)))
        else:
            assert isinstance(self.records, InMemoryDeadLetterRecords)
            actions = self.records.actions
        assert {(one.actor, one.reason) for one in actions} <= {tuple(WHO.values())}
        return [(one.action, one.outcome, one.affected) for one in actions]

    async def dead(self) -> str:
        """Dead-letter a message."""
        run = await lease(self.inbox, entry())
        await self.inbox.begin_dead_letter(run.lease, reason="REJECTED", detail="422")
        await self.inbox.mark_dead_lettered([run.lease])
        return run.lease.message_id

    async def processed(self) -> str:
        run = await lease(self.inbox, entry())
        await self.inbox.mark_processed_batch([run.lease])
        return run.lease.message_id


@pytest.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[World]:
    if request.param == "memory":
        table = InboxTable(lambda: 1000.0)
        yield World(
            inbox=InMemoryInbox(table=table, worker="w"), records=InMemoryDeadLetterRecords(table=table)
        )
        return
    async with opened(database, hints=OPERATOR_HINTS) as pool:
        yield World(inbox=PostgresInboxAdapter(pool=pool, worker="w"), records=PostgresOperations(pool=pool))


async def test_a_redriven_message_is_handled_when_it_comes_again(world: World) -> None:
    message_id = await world.dead()
    again = entry(message_id)
    [before] = await insert(world.inbox, again)
    assert isinstance(before, AlreadySettled)

    redrive = await world.records.redriven(uuid.UUID(message_id), **WHO)
    assert redrive == Redrive(open=True, reopened=True, action=redrive.action)
    assert await world.audit() == [("redrive", "open", 0)]

    [receipt] = await insert(world.inbox, again)
    assert isinstance(receipt, Leased)
    assert receipt.attempts == 1
    assert receipt.dead_letter_begun_seconds_ago >= 0.0
    await world.records.finish(redrive.action, "done")
    assert await world.audit() == [("redrive", "done", 1)]


async def test_a_redrive_opens_neither_an_open_message_nor_a_processed_one(world: World) -> None:
    waiting = (await lease(world.inbox, entry())).lease.message_id
    results = [
        await world.records.redriven(uuid.UUID(one), **WHO)
        for one in (waiting, str(uuid.uuid4()), await world.processed())
    ]
    assert [(one.open, one.reopened) for one in results] == [(True, False), (True, False), (False, False)]
    await world.records.finish(results[-1].action, "refused")
    assert await world.audit() == [("redrive", "open", 0)] * 2 + [("redrive", "refused", 0)]


async def test_a_purge_counts_the_messages_that_it_gave_up_and_refuses_open_ones(world: World) -> None:
    action = await world.records.begin_purge({"seqs": [1, 2]}, **WHO)
    dead, waiting = await world.dead(), (await lease(world.inbox, entry())).lease.message_id
    given_up = [
        await world.records.record_purge(one and uuid.UUID(one), action=action, **WHO)
        for one in (dead, await world.processed(), str(uuid.uuid4()), None, waiting)
    ]
    assert given_up == [True, True, True, True, False]
    assert await world.audit() == [("purge", "open", 4)]
    await world.records.finish(action, "done")
    assert await world.audit() == [("purge", "done", 4)]
    assert (await world.records.redriven(uuid.UUID(dead), **WHO)).reopened, "it can be redriven all the same"


async def test_a_change_without_an_actor_or_a_reason_is_refused(world: World) -> None:
    for who in ({"actor": " "}, {"reason": ""}):
        with pytest.raises(ValueError, match="actor and a reason"):
            await world.records.begin_purge({}, **WHO | who)
        with pytest.raises(ValueError, match="actor and a reason"):
            await world.records.redriven(uuid.uuid4(), **WHO | who)
    assert await world.audit() == []
