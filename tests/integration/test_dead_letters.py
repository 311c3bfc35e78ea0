"""Dead letters on real servers: read, redrive and purge them."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.errors import BrokerUnavailableError, ContractError, StoreUnavailableError
from sea_mq_worker.inbox.dead_letter import Reason, headers_only
from sea_mq_worker.inbox.message import Lease, content_hash
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.message import InboundMessage, OutboundMessage
from sea_mq_worker.operators.dead_letters import (
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetters,
    dead_letter_groups,
)
from sea_mq_worker.operators.redrive import DeadLetterOutcome, Redriver, purging
from sea_mq_worker.operators.tables import audit
from sea_mq_worker.testing.handler import InMemoryHandler, Respond
from tests.support.builders import dead_letter, inbound_message
from tests.support.inboxes import entry as inbox_entry
from tests.support.inboxes import lease
from tests.support.jetstream import create_stream, store
from tests.support.waiting import eventually

EVERY = DeadLetterFilter()
LEASED = (
    "dead_lettered_at = NULL, dead_letter_reason = NULL, locked_by = 'w#9',"
    " locked_until = now() + interval '1 minute'"
)
LEASE = 30.0
REQUEST = "0c2f3b8e-0000-4000-8000-00000000000c"


class Letters(DeadLetters):
    """A dead-letter stream whose server may be away when a letter is removed."""

    away = False

    async def remove(self, seq: int) -> None:
        if self.away:
            raise BrokerUnavailableError("no answer")
        await super().remove(seq)


class Inbox(PostgresInboxAdapter):
    """An inbox whose server may be away when a result is written."""

    away = False

    async def mark_processed_batch(self, leases: Sequence[Lease]) -> frozenset[str]:
        if self.away:
            raise StoreUnavailableError("no connection")
        return await super().mark_processed_batch(leases)


@dataclass(kw_only=True)
class World:
    """A dead-letter stream ``{name}_DLQ``, the stream of its messages, the inbox, and a handler."""

    connection: NatsConnection
    pool: asyncpg.Pool
    name: str
    handler: InMemoryHandler = field(default_factory=InMemoryHandler)
    lease_seconds: float = LEASE

    def __post_init__(self) -> None:
        self.letters = Letters(self.connection, f"{self.name}_DLQ")
        self.inbox = Inbox(pool=self.pool, worker="redrive")

    async def store(self, subject: str, payload: bytes, headers: dict[str, str]) -> int:
        return await store(self.connection, subject, payload, headers)

    async def dead_letter(self, *, omit: str = "", as_id: str = "", detail: str = "422") -> tuple[str, int]:
        """Dead-letter a message; return its ID and the sequence of its dead letter."""
        headers = {"Nats-Msg-Id": str(uuid.uuid4()), "ce-correlationid": REQUEST}
        subject = f"{self.name}v.event.vibe_created.v1"
        seq = await self.store(subject, b'{"vibe": "calm"}', headers)
        message = inbound_message(
            stream=source_name(self), seq=seq, subject=subject, payload=b'{"vibe": "calm"}', headers=headers
        )
        message_id = as_id or headers["Nats-Msg-Id"]
        built = dead_letter(message, context=self.name, message_id=message_id, detail=detail)
        if omit == "body":
            built = headers_only(built)
        elif omit == "headers":
            kept = {name: value for name, value in built.headers.items() if name != "ce-correlationid"}
            built = built._replace(headers=kept | {"Dlq-Headers-Omitted": "1"})
        worker = PostgresInboxAdapter(pool=self.pool, worker="worker")
        run = await lease(worker, inbox_entry(message_id, content_hash=content_hash(message)))
        await worker.begin_dead_letter(run, reason="REJECTED", detail="422")
        await worker.mark_dead_lettered([run])
        return message_id, await self.store(built.subject, built.payload, dict(built.headers))

    async def redrive(self, seq: int) -> DeadLetterOutcome:
        redriver = Redriver(
            pool=self.pool,
            letters=self.letters,
            inbox=self.inbox,
            handler=self.handler,
            lease_seconds=self.lease_seconds,
        )
        return await redriver.redrive(seq, actor="ann", reason="fixed")

    async def purge(self, *seqs: int) -> list[DeadLetterOutcome]:
        async with purging(self.pool, self.letters, {"seqs": seqs}, actor="ann", reason="old") as purge:
            return [await purge(seq) for seq in seqs]

    async def change(self, message_id: str, columns: str) -> None:
        await self.pool.execute(
            f"UPDATE inbox_messages SET {columns} WHERE message_id = $1", UUID(message_id)
        )

    async def row(self, message_id: str) -> asyncpg.Record:
        return await self.pool.fetchrow(
            "SELECT * FROM inbox_messages WHERE message_id = $1", UUID(message_id)
        )

    async def left(self) -> list[int]:
        return [entry.seq for entry in await self.letters.list()]

    async def audit(self) -> list[tuple[str, int]]:
        return [(one.outcome, one.affected) for one in reversed(await audit(self.pool, limit=9))]


@pytest.fixture
async def world(connection: NatsConnection, pool: asyncpg.Pool, names: str) -> World:
    made = World(connection=connection, pool=pool, name=names)
    await create_stream(connection, f"{names}_DLQ", f"{names}.dlq.>")
    await create_stream(connection, source_name(made), f"{names}v.event.>")
    return made


def source_name(world: World) -> str:
    return f"{world.name}_EVENTS".upper()


def source(world: World, body: bytes = b'{"vibe": 1.00}', seq: int = 7) -> InboundMessage:
    return inbound_message(
        stream=source_name(world),
        seq=seq,
        subject=f"{world.name}v.event.vibe_created.v1",
        payload=body,
        headers={"Nats-Msg-Id": "0c2f3b8e-0000-4000-8000-000000000001", "ce-type": "vibe_created"},
    )


def letter(world: World, number: int = 1, reason: Reason = Reason.REJECTED) -> OutboundMessage:
    given = {"message_id": f"0c2f3b8e-0000-4000-8000-{number:012}", "reason": reason}
    return dead_letter(source(world), context=world.name, **given)


async def put(world: World, letter: OutboundMessage) -> DeadLetterEntry:
    seq = await world.store(letter.subject, letter.payload, dict(letter.headers))
    return await world.letters.show(seq)


@pytest.mark.clause("EVT-047-002")
async def test_an_entry_has_all_fields_and_restores_the_original(world: World) -> None:
    original = source(world)
    entry = await put(world, letter(world))
    assert (entry.message_id, entry.original_subject, entry.reason, entry.attempts) == (
        "0c2f3b8e-0000-4000-8000-000000000001",
        original.subject,
        "REJECTED",
        3,
    )
    assert (entry.stream, entry.stream_sequence, entry.consumer) == (original.stream, 7, original.consumer)
    assert (entry.detail, entry.body_bytes, entry.body_omitted) == ("the handler answered 422", 14, False)
    restored = entry.restored()
    assert (restored.subject, restored.payload, restored.headers) == (
        original.subject,
        original.payload,
        original.headers,
    )


async def test_a_list_is_filtered_and_bounded_and_skips_what_was_removed(world: World) -> None:
    letters = [
        await put(world, letter(world, number, Reason.EXHAUSTED if number % 2 else Reason.REJECTED))
        for number in range(1, 6)
    ]
    dead_letters = world.letters
    await dead_letters.remove(3)

    async def listed(which: DeadLetterFilter = EVERY, **bounds: int) -> list[int]:
        return [entry.seq for entry in await dead_letters.list(which, **bounds)]

    assert (await dead_letters.list(limit=1)) == [letters[0].summary()]
    assert await listed() == [1, 2, 4, 5]
    assert await listed(limit=2) == await listed(read_max=2) == [1, 2]
    assert await listed(DeadLetterFilter(reason="EXHAUSTED")) == [1, 5]
    assert await listed(DeadLetterFilter(reason="REJECTED"), limit=1) == [2]
    assert await listed(DeadLetterFilter(after_seq=2)) == [4, 5]
    assert await listed(DeadLetterFilter(since=letters[3].stored_at)) == [4, 5]
    assert await listed(DeadLetterFilter(until=letters[3].stored_at)) == [1, 2]


async def test_what_is_not_there_is_named(world: World) -> None:
    with pytest.raises(ContractError, match=f"{world.name}_DLQ has no message 9"):
        await world.letters.show(9)
    with pytest.raises(ContractError, match="has no message 9"):
        await world.letters.remove(9)
    assert await world.letters.list() == []


async def test_a_foreign_message_in_the_stream_disturbs_no_other(world: World) -> None:
    await world.store(
        f"{world.name}.dlq.anything", b"\xff", {"Dlq-Attempts": "many", "Dlq-Stream-Sequence": "9" * 5000}
    )
    [entry] = await world.letters.list(DeadLetterFilter(reason="", subject=""))
    assert (entry.message_id, entry.attempts, entry.stream_sequence, entry.body_bytes) == ("", 0, 0, 1)


# --- redrive


async def test_a_redriven_message_without_an_effect_keeps_its_dead_letter_and_is_dead_lettered_again(
    world: World,
) -> None:
    message_id, seq = await world.dead_letter()
    world.handler.script = lambda _request, _call: Respond(status=422)
    outcome = await world.redrive(seq)
    assert (outcome.done, outcome.text) == (False, "the handler answered 422; the dead letter stays")
    row = await world.row(message_id)
    assert row["dead_lettered_at"] is not None
    assert (row["dead_letter_reason"], row["last_error"]) == (
        "REJECTED", "REJECTED: redrive: the handler answered 422",
    )  # fmt: skip
    assert (await world.left(), await world.audit()) == ([seq], [("refused", 0)])


async def test_a_redrive_calls_no_handler_for_a_message_that_was_processed_since(world: World) -> None:
    message_id, seq = await world.dead_letter()
    await world.change(message_id, "processed_at = now(), dead_lettered_at = NULL, dead_letter_reason = NULL")
    outcome = await world.redrive(seq)
    assert (outcome.done, "processed before" in outcome.text) == (True, True)
    assert (world.handler.requests, await world.left(), await world.audit()) == ([], [], [("done", 1)])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (LEASED, "retry when the lease has ended"),
        ("content_hash = 'another'", "another content under its ID"),
    ],
)
async def test_a_redrive_leaves_a_message_that_a_worker_has_or_that_has_another_content(
    world: World, columns: str, said: str
) -> None:
    message_id, seq = await world.dead_letter()
    await world.pool.execute("ALTER TABLE inbox_messages DISABLE TRIGGER USER")
    await world.change(message_id, columns)
    await world.pool.execute("ALTER TABLE inbox_messages ENABLE TRIGGER USER")
    outcome = await world.redrive(seq)
    assert (outcome.done, said in outcome.text) == (False, True)
    assert (world.handler.requests, await world.left(), await world.audit()) == ([], [seq], [("refused", 0)])


async def test_a_redrive_renews_its_lease_for_as_long_as_the_handler_takes(world: World) -> None:
    message_id, seq = await world.dead_letter()
    world.lease_seconds = 1.0
    world.handler = InMemoryHandler(lambda *_: Respond(slow_seconds=3.0), timeout_seconds=60.0)
    redriving = asyncio.create_task(world.redrive(seq))

    async def end_of_lease() -> object:
        return (await world.row(message_id))["locked_until"]

    first = await eventually(end_of_lease)
    await eventually(end_of_lease, until=lambda end: end > first, what="the lease is renewed")
    assert (await redriving).done


async def test_a_redrive_that_lost_its_lease_keeps_the_dead_letter(world: World) -> None:
    message_id, seq = await world.dead_letter()
    world.handler.script = lambda *_: Respond(slow_seconds=1.0)
    redriving = asyncio.create_task(world.redrive(seq))

    async def is_leased() -> bool:
        return (await world.row(message_id))["locked_by"] is not None

    await eventually(is_leased)
    await world.change(message_id, "locked_by = 'worker#9'")
    outcome = await redriving
    assert (outcome.done, "another worker has taken it over" in outcome.text) == (False, True)
    assert (await world.left(), await world.audit()) == ([seq], [("refused", 0)])


@pytest.mark.parametrize("away", ["inbox", "letters"])
async def test_a_redrive_that_failed_in_the_middle_is_recorded_and_repeated_without_a_second_effect(
    world: World, away: str
) -> None:
    message_id, seq = await world.dead_letter()
    server: Inbox | Letters = getattr(world, away)
    server.away = True
    with pytest.raises((BrokerUnavailableError, StoreUnavailableError)):
        await world.redrive(seq)
    assert (await world.left(), await world.audit()) == ([seq], [("failed", 0)])
    server.away = False
    if away == "inbox":
        await world.change(message_id, "locked_until = now()")
    assert (await world.redrive(seq)).done
    assert (await world.left(), await world.audit()) == ([], [("failed", 0), ("done", 1)])
    assert world.handler.effects[message_id] == 1
    assert (await world.row(message_id))["processed_at"] is not None


@pytest.mark.parametrize("omitted", ["body", "headers"])
async def test_what_was_omitted_is_read_from_the_stream_and_a_body_that_is_gone_is_named(
    world: World, omitted: str
) -> None:
    _, seq = await world.dead_letter(omit=omitted)
    _, again = await world.dead_letter(omit=omitted)
    assert (await world.redrive(seq)).done
    [request] = world.handler.requests
    assert (request.payload, request.correlation_id) == (b'{"vibe": "calm"}', REQUEST)
    await api(world.connection, f"STREAM.PURGE.{source_name(world)}")
    outcome = await world.redrive(again)
    assert outcome.done == (omitted == "headers")
    if omitted == "body":
        assert "has no message 2 (any more)" in outcome.text


async def test_a_message_that_can_never_be_handled_is_not_redriven(world: World) -> None:
    _, seq = await world.dead_letter(as_id=str(uuid.uuid4()))
    outcome = await world.redrive(seq)
    assert (outcome.done, "publish it corrected, under a new ID" in outcome.text) == (False, True)
    assert "has no message 99 (any more)" in (await world.redrive(99)).text
    assert (world.handler.requests, await world.left(), await world.audit()) == ([], [seq], [])


# --- purge, and groups


async def test_a_purge_gives_messages_up_and_keeps_the_dead_letter_of_an_open_one(world: World) -> None:
    (first, one), (second, two) = await world.dead_letter(), await world.dead_letter()
    await world.change(second, "dead_lettered_at = NULL, dead_letter_reason = NULL")
    done, kept, gone = await world.purge(one, two, 99)
    assert (done.done, kept.done, gone.done) == (True, False, False)
    assert "its message is open again" in kept.text
    row = await world.row(first)
    assert (row["dead_letter_reason"], row["last_error"]) == ("CLOSED", "purged by ann: old; REJECTED: 422")
    assert (await world.left(), await world.audit()) == ([two], [("done", 1)])


async def test_a_purge_of_nothing_is_refused_and_one_that_fails_in_the_middle_is_recorded_as_failed(
    world: World,
) -> None:
    _, one = await world.dead_letter()
    await world.purge(99)
    world.letters.away = True
    with pytest.raises(BrokerUnavailableError):
        await world.purge(one)
    assert (await world.left(), await world.audit()) == ([one], [("refused", 0), ("failed", 1)])
    world.letters.away = False
    [again] = await world.purge(one)
    assert (again.done, await world.left()) == (True, [])


async def test_groups_of_dead_letters_count_details_without_their_ids_and_are_bounded(world: World) -> None:
    for _ in range(2):
        await world.dead_letter(detail=f"no order {uuid.uuid4()}")
    await world.dead_letter(detail="422")
    read, groups = await dead_letter_groups(world.letters, EVERY, read_max=9, groups_max=1)
    assert read == 3
    assert [(group.kind, group.count) for group in groups] == [
        ("consumer", 3), ("detail", 2), ("reason", 3), ("subject", 3),
    ]  # fmt: skip
    assert (await dead_letter_groups(world.letters, EVERY, read_max=2, groups_max=9))[0] == 2
