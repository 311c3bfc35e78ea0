"""Redrive and purge of dead letters on in-memory fakes, in virtual time."""

import asyncio
import uuid
from collections.abc import Sequence

import pytest

from sea_mq_worker.errors import BrokerUnavailableError, StoreUnavailableError
from sea_mq_worker.inbox.dead_letter import dead_letter_message, headers_only
from sea_mq_worker.inbox.message import Lease, content_hash
from sea_mq_worker.operators.dead_letters import DeadLetterOutcome, Purger, Redriver, dead_letter_groups
from sea_mq_worker.operators.records import DeadLetterFilter
from sea_mq_worker.testing.handler import InMemoryHandler, Respond
from sea_mq_worker.testing.inbox import InboxTable, InMemoryInbox
from sea_mq_worker.testing.operators import InMemoryDeadLetterRecords, InMemoryDeadLetters
from sea_mq_worker.testing.stream import InMemoryStream
from tests.support.builders import dead_letter, inbound_message
from tests.support.inboxes import entry, lease
from tests.support.simulation import in_virtual_time

LEASE = 30.0


class Letters(InMemoryDeadLetters):
    """A dead-letter stream whose server may be away when one is removed."""

    away = False

    async def remove(self, seq: int) -> None:
        if self.away:
            raise BrokerUnavailableError("no answer")
        await super().remove(seq)


class Inbox(InMemoryInbox):
    """An inbox whose server may be away when a result is written."""

    away = False

    async def mark_processed_batch(self, leases: Sequence[Lease]) -> frozenset[str]:
        if self.away:
            raise StoreUnavailableError("no connection")
        return await super().mark_processed_batch(leases)


class World:
    """Dead letters, the inbox, and a handler."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.table = InboxTable(clock)
        self.inbox = Inbox(table=self.table, worker="redrive")
        self.letters = InMemoryStream(name="SEA_DLQ", clock=clock)
        self.source = InMemoryStream(name="VIBESPRO_EVENTS", clock=clock)
        self.store = Letters(stream=self.letters, sources=[self.source])
        self.records = InMemoryDeadLetterRecords(table=self.table)
        self.handler = InMemoryHandler()

    async def dead_letter(
        self, *, omit_body: bool = False, as_id: str = "", detail: str = "422"
    ) -> tuple[str, int]:
        """Dead-letter a message; return its ID and the sequence of its dead letter."""
        message = inbound_message()
        stored = self.source.store(message.subject, message.payload, message.headers)
        message = message._replace(seq=stored.seq)
        message_id = as_id or message.headers["Nats-Msg-Id"]
        letter = dead_letter(message, message_id=message_id, detail=detail)
        built = dead_letter_message(letter, context="sea")
        built = headers_only(built) if omit_body else built
        worker = InMemoryInbox(table=self.table, worker="worker")
        run = await lease(worker, entry(letter.message_id, content_hash=content_hash(message)))
        await worker.begin_dead_letter(run.lease, reason="REJECTED", detail="422")
        await worker.mark_dead_lettered([run.lease])
        return letter.message_id, self.letters.store(built.subject, built.payload, built.headers).seq

    async def redrive(self, seq: int) -> DeadLetterOutcome:
        redriver = Redriver(
            records=self.records,
            inbox=self.inbox,
            dead_letters=self.store,
            handler=self.handler,
            lease_seconds=LEASE,
        )
        return await redriver.redrive(seq, actor="ann", reason="fixed")

    async def purge(self, *seqs: int) -> list[DeadLetterOutcome]:
        purger = Purger(records=self.records, dead_letters=self.store, actor="ann", reason="old")
        async with purger.recorded({"seqs": seqs}) as purge:
            return [await purge(seq) for seq in seqs]

    @property
    def left(self) -> list[int]:
        return [stored.seq for stored in self.letters.entries()]

    @property
    def audit(self) -> list[tuple[str, int]]:
        return [(action.outcome, action.affected) for action in self.records.actions]


@in_virtual_time
async def test_a_redriven_message_without_an_effect_keeps_its_dead_letter_and_is_dead_lettered_again() -> (
    None
):
    world = World()
    message_id, seq = await world.dead_letter()
    world.handler.script = lambda _request, _call: Respond(status=422)
    outcome = await world.redrive(seq)
    assert (outcome.done, outcome.text) == (False, "the handler answered 422; the dead letter stays")
    row = world.table.rows[message_id]
    assert row.dead_lettered_at is not None
    assert (row.dead_letter_reason, row.last_error) == (
        "REJECTED", "REJECTED: redrive: the handler answered 422",
    )  # fmt: skip
    assert (world.left, world.audit) == ([seq], [("refused", 0)])


@in_virtual_time
async def test_a_redrive_calls_no_handler_for_a_message_that_was_processed_since() -> None:
    world = World()
    message_id, seq = await world.dead_letter()
    row = world.table.rows[message_id]
    row.processed_at, row.dead_lettered_at = 1.0, None
    outcome = await world.redrive(seq)
    assert (outcome.done, "processed before" in outcome.text) == (True, True)
    assert (world.handler.requests, world.left, world.audit) == ([], [], [("done", 1)])


@in_virtual_time
async def test_a_redrive_leaves_a_message_to_the_worker_that_has_it() -> None:
    world = World()
    message_id, seq = await world.dead_letter()
    row = world.table.rows[message_id]
    row.dead_lettered_at, row.locked_by, row.locked_until = None, "worker#9", 20.0
    outcome = await world.redrive(seq)
    assert (outcome.done, "retry when the lease has ended" in outcome.text) == (False, True)
    assert (world.handler.requests, world.left, world.audit) == ([], [seq], [("refused", 0)])


@in_virtual_time
async def test_a_redrive_of_another_content_names_the_conflict() -> None:
    world = World()
    message_id, seq = await world.dead_letter()
    world.table.rows[message_id].content_hash = b"another"
    outcome = await world.redrive(seq)
    assert (outcome.done, "another content under its ID" in outcome.text) == (False, True)


@in_virtual_time
async def test_a_redrive_renews_its_lease_for_as_long_as_the_handler_takes() -> None:
    world = World()
    message_id, seq = await world.dead_letter()
    world.handler = InMemoryHandler(lambda *_: Respond(slow_seconds=3 * LEASE), timeout_seconds=4 * LEASE)
    redriving = asyncio.create_task(world.redrive(seq))
    await asyncio.sleep(2.5 * LEASE)
    assert (world.table.rows[message_id].locked_until or 0.0) > 2.5 * LEASE
    assert (await redriving).done
    assert world.table.rows[message_id].processed_at == pytest.approx(3 * LEASE)


@in_virtual_time
async def test_a_redrive_that_lost_its_lease_keeps_the_dead_letter() -> None:
    world = World()
    message_id, seq = await world.dead_letter()
    world.handler.script = lambda *_: Respond(slow_seconds=1.0)
    redriving = asyncio.create_task(world.redrive(seq))
    await asyncio.sleep(0.5)
    world.table.rows[message_id].locked_by = "worker#9"
    outcome = await redriving
    assert (outcome.done, "another worker has taken it over" in outcome.text) == (False, True)
    assert (world.left, world.audit) == ([seq], [("refused", 0)])


@pytest.mark.parametrize("away", ["inbox", "store"])
@in_virtual_time
async def test_a_redrive_that_failed_in_the_middle_is_recorded_and_repeated_without_a_second_effect(
    away: str,
) -> None:
    world = World()
    message_id, seq = await world.dead_letter()
    server: Inbox | Letters = getattr(world, away)
    server.away = True
    with pytest.raises((BrokerUnavailableError, StoreUnavailableError)):
        await world.redrive(seq)
    assert (world.left, world.audit) == ([seq], [("failed", 0)])
    server.away = False
    await asyncio.sleep(LEASE)
    assert (await world.redrive(seq)).done
    assert (world.left, world.audit) == ([], [("failed", 0), ("done", 1)])
    assert (world.handler.effects[message_id], world.table.rows[message_id].processed_at is None) == (
        1, False,
    )  # fmt: skip


@in_virtual_time
async def test_a_body_that_was_omitted_is_read_from_the_stream() -> None:
    world = World()
    _, seq = await world.dead_letter(omit_body=True)
    assert (await world.redrive(seq)).done
    assert world.handler.requests[0].payload == b'{"vibe": "calm"}'
    _, gone = await world.dead_letter(omit_body=True)
    world.source.purge()
    outcome = await world.redrive(gone)
    assert (outcome.done, "VIBESPRO_EVENTS has no message" in outcome.text) == (False, True)


@in_virtual_time
async def test_a_message_that_can_never_be_handled_is_not_redriven() -> None:
    world = World()
    _, seq = await world.dead_letter(as_id=str(uuid.uuid4()))
    outcome = await world.redrive(seq)
    assert (outcome.done, "publish it corrected, under a new ID" in outcome.text) == (False, True)
    assert (await world.redrive(99)).text == "stream SEA_DLQ has no message 99 (any more)"
    assert (world.handler.requests, world.left, world.audit) == ([], [seq], [])


@in_virtual_time
async def test_a_purge_gives_messages_up_and_keeps_the_dead_letter_of_an_open_one() -> None:
    world = World()
    (first, one), (second, two) = await world.dead_letter(), await world.dead_letter()
    world.table.rows[second].dead_lettered_at = None
    done, kept, gone = await world.purge(one, two, 99)
    assert (done.done, kept.done, gone.done) == (True, False, False)
    assert "its message is open again" in kept.text
    row = world.table.rows[first]
    assert (row.dead_letter_reason, row.last_error) == ("CLOSED", "purged by ann: old; REJECTED: 422")
    assert (world.left, world.audit) == ([two], [("done", 1)])


@in_virtual_time
async def test_a_purge_of_nothing_is_refused_and_one_that_fails_in_the_middle_is_recorded_as_failed() -> None:
    world = World()
    _, one = await world.dead_letter()
    await world.purge(99)
    world.store.away = True
    with pytest.raises(BrokerUnavailableError):
        await world.purge(one)
    assert (world.left, world.audit) == ([one], [("refused", 0), ("failed", 1)])
    world.store.away = False
    [again] = await world.purge(one)
    assert (again.done, world.left) == (True, [])


@in_virtual_time
async def test_groups_of_dead_letters_count_details_without_their_ids_and_are_bounded() -> None:
    world = World()
    for _ in range(2):
        await world.dead_letter(detail=f"no order {uuid.uuid4()}")
    await world.dead_letter(detail="422")
    read, groups = await dead_letter_groups(world.store, DeadLetterFilter(), read_max=9, groups_max=1)
    assert read == 3
    assert [(group.kind, group.count) for group in groups] == [
        ("consumer", 3), ("detail", 2), ("reason", 3), ("subject", 3),
    ]  # fmt: skip
    assert (await dead_letter_groups(world.store, DeadLetterFilter(), read_max=2, groups_max=9))[0] == 2
