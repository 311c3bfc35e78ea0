"""Message lookup on real servers: the sentences and the next commands for each state."""

import asyncio
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from sea_mq_worker.errors import BrokerUnavailableError
from sea_mq_worker.inbox.dead_letter import conflict_detail
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.operators import lookup as looking
from sea_mq_worker.operators.changes import close, discard
from sea_mq_worker.operators.dead_letters import DeadLetters
from sea_mq_worker.operators.lookup import Lookup, LookupReport, NoIdError, lookup_report
from sea_mq_worker.operators.records import OutboxFilter
from tests.support.builders import dead_letter, inbound_message
from tests.support.jetstream import create_consumer, create_stream, store
from tests.support.rows import add_event, add_message

WHY = '--reason "..."'
RUN = "python -m sea_mq_worker"
FAR = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True)
class World:
    """Rows, streams and dead letters, and the lookup over them."""

    pool: asyncpg.Pool
    connection: NatsConnection
    name: str

    @property
    def stream(self) -> str:
        return f"{self.name}_EVENTS"

    async def ask(self, wanted: object, *, since: datetime | None = None, **given: Any) -> LookupReport:
        lookup = Lookup(
            pool=self.pool,
            connection=self.connection,
            letters=DeadLetters(self.connection, f"{self.name}_DLQ"),
            searched=(self.stream,),
        )
        for name, value in given.items():
            setattr(lookup, name, value)
        return await lookup_report(str(wanted), lookup, since=since)

    async def store(self, message_id: object) -> int:
        return await store(self.connection, f"{self.name}.event.x", b"{}", {"Nats-Msg-Id": str(message_id)})

    async def published(self) -> tuple[UUID, int]:
        event = await add_event(self.pool, "PUBLISHED")
        seq = await self.store(event)
        await self.place(event, seq)
        return event, seq

    async def place(self, event: UUID, seq: int | None, stream: str | None = "") -> None:
        stream = self.stream if stream == "" else stream
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            changed = "UPDATE outbox_events SET stream = $2, stream_seq = $3 WHERE id = $1"
            await connection.execute(changed, event, stream, seq)

    async def dead_letter(self, message_id: UUID) -> int:
        built = dead_letter(inbound_message(str(message_id)), context=self.name)
        return await store(self.connection, built.subject, built.payload, dict(built.headers))

    async def purge(self) -> None:
        await api(self.connection, f"STREAM.PURGE.{self.stream}")


@pytest.fixture
async def world(pool: asyncpg.Pool, connection: NatsConnection, names: str) -> World:
    await create_stream(connection, f"{names}_EVENTS", f"{names}.event.>")
    await create_stream(connection, f"{names}_DLQ", f"{names}.dlq.>")
    return World(pool=pool, connection=connection, name=names)


async def test_an_event_that_waits_names_what_it_waits_for(world: World) -> None:
    first = await add_event(world.pool, ordering_key="k", error="no answer", available_at=FAR)
    second, free = await add_event(world.pool, ordering_key="k"), await add_event(world.pool)
    assert "tried again at 2100-01-01" in (await world.ask(first)).answer[0]
    behind = await world.ask(second)
    assert behind.answer == (
        "it waits for 1 earlier event of its ordering key, the first PENDING: no answer",
    )
    assert behind.next_steps == (f"{RUN} where {first}",)
    assert (await world.ask(free)).answer[0].startswith("it waits for a worker since 20")
    *_, last = [await add_event(world.pool, ordering_key="long") for _ in range(102)]
    assert "waits for 100 or more earlier events" in (await world.ask(last)).answer[0]


async def test_an_event_waits_for_a_dead_one_only_where_dead_ones_hold_their_key(world: World) -> None:
    dead = await add_event(world.pool, "DEAD", ordering_key="k", error="too large")
    held = await add_event(world.pool, ordering_key="k")
    assert "waits for a worker" in (await world.ask(held)).answer[0]
    found = await world.ask(held, dead_hold=True)
    assert found.answer == ("it waits for 1 earlier event of its ordering key, the first DEAD: too large",)
    assert found.next_steps == (f"{RUN} where {dead}",)


GONE = "; its session is gone: a worker takes the lease over, or the lease ends by its time"


@pytest.mark.parametrize(
    ("token", "session"),
    [("9", ""), ("00c0ffee12345678", "; its session lives"), ("0000dead12345678", GONE)],
)
async def test_a_lease_names_its_worker_and_whether_its_session_lives(
    world: World, token: str, session: str
) -> None:
    event, message = await add_event(world.pool, "CLAIMED"), await add_message(world.pool)
    async with world.pool.acquire() as connection:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            owner = f"host-7#{token}"
            await connection.execute("UPDATE outbox_events SET claimed_by = $1", owner)
            leased = "UPDATE inbox_messages SET locked_by = $1, locked_until = now() + interval '1 hour'"
            await connection.execute(leased, owner)
        await connection.execute("SELECT pg_advisory_lock_shared(7184, x'00c0ffee'::int)")
        publishing, handling = await world.ask(event), await world.ask(message)
        await connection.execute("SELECT pg_advisory_unlock_all()")
    assert publishing.answer == (f"the worker host-7 is publishing it, attempt 1{session}",)
    assert handling.answer == (f"the worker host-7 is handling it, attempt 3{session}",)


async def test_a_published_event_names_the_progress_of_each_consumer(world: World) -> None:
    event, seq = await world.published()
    for name in ("slow", "holder"):
        await create_consumer(world.connection, world.stream, name)
    jetstream = world.connection.client.jetstream()
    [message] = await (await jetstream.pull_subscribe_bind("holder", stream=world.stream)).fetch(1)
    found = await world.ask(event)
    assert found.answer == (
        f"it is published, and in {world.stream} under sequence {seq}",
        f"consumer holder of {world.stream} has delivered it, and waits for it or an earlier one to end",
        f"consumer slow of {world.stream} has still to deliver it, after 0 others at most",
    )
    assert {step.text.split()[0] for step in found.steps} == {"written", "acknowledged", "stored"}
    await message.ack_sync()
    assert f"consumer holder of {world.stream} is done with it" in (await world.ask(event)).answer


async def test_an_event_without_a_place_in_the_stream_is_not_called_lost(world: World) -> None:
    """A worker of SDS-047 published it, and noted no place."""
    event = await add_event(world.pool, "PUBLISHED")
    await world.place(event, None, stream=None)
    found = await world.ask(event)
    assert found.answer == ("it is published, by another worker, which noted no place in the stream",)
    assert found.next_steps == ()
    assert "published by another worker" in {step.text for step in found.steps}


async def test_an_event_that_the_stream_dropped_by_its_limits_is_not_called_lost(world: World) -> None:
    limited = f"{world.name}_LIMITED"
    await create_stream(world.connection, limited, f"{world.name}.limited.>", max_msgs=1)
    event = await add_event(world.pool, "PUBLISHED")
    for message_id in (event, uuid.uuid4()):
        await store(world.connection, f"{world.name}.limited.x", b"{}", {"Nats-Msg-Id": str(message_id)})
    await world.place(event, 1, stream=limited)
    found = await world.ask(event)
    assert found.answer == (f"it was published, and is no longer in {limited} under sequence 1",)
    assert found.next_steps == (f"{RUN} outbox replay {event} {WHY}",)


async def test_an_event_that_the_stream_has_lost_is_to_be_replayed(world: World) -> None:
    event, seq = await world.published()
    await world.purge()
    assert f"lost it since: somebody removed message {seq}" in (await world.ask(event)).answer[0]
    await world.place(event, await world.store(uuid.uuid4()))
    found = await world.ask(event)
    assert "lost it since: the stream has another message at 2" in found.answer[0]
    assert found.next_steps == (f"{RUN} outbox replay {event} {WHY}", f"{RUN} doctor")
    await world.place(event, 3)
    assert "ends at 2" in (await world.ask(event)).answer[0]
    alone = await world.ask(event, connection=None, letters=None, notes=["streams: no server"])
    assert alone.answer == (f"it is published: {world.stream} under sequence 3 was acknowledged",)
    assert alone.not_checked == ("streams: no server",)


async def test_a_dead_event_is_replayed_unless_it_can_never_be_sent(world: World) -> None:
    large = await add_event(world.pool, "DEAD", error="too large: 2 MB")
    found = await world.ask(large)
    assert found.answer == ("it is DEAD and will not be published: too large: 2 MB",)
    assert found.next_steps == (f"{RUN} outbox replay {large} {WHY}",)
    blank = await add_event(world.pool, "DEAD", error="INVALID_OUTBOX: event_type is blank")
    found = await world.ask(blank)
    assert found.next_steps == (f"{RUN} outbox discard {blank} {WHY}",)
    assert "can never be sent as it is" in found.answer[1]
    await discard(world.pool, [blank], selection=OutboxFilter(), actor="ann", reason="sent anew")
    gone = await world.ask(blank)
    assert gone.known
    assert re.fullmatch(r"ann discarded it at 20.*: sent anew", gone.answer[0])
    assert gone.answer[1] == (
        "it was a DEAD event of type order.created: INVALID_OUTBOX: event_type is blank"
    )


async def test_a_dead_lettered_message_names_its_dead_letter(world: World) -> None:
    message = await add_message(world.pool, dead=True)
    await world.dead_letter(await add_message(world.pool, dead=True))
    gone = await world.ask(message)
    assert gone.answer == ("it is dead-lettered: REJECTED: 422; its dead letter is no longer in the stream",)
    seq = await world.dead_letter(message)
    found = await world.ask(message)
    assert found.answer == ("it is dead-lettered: REJECTED: 422",)
    assert found.next_steps == (f"{RUN} dlq show {seq}", f"{RUN} dlq redrive {seq} {WHY}")
    assert found.steps[0].text.startswith("received by durable: ")
    assert found.steps[-1].text == f"stored as dead letter {seq}: REJECTED"
    await close(world.pool, [open_one := await add_message(world.pool)], actor="ann", reason="nobody has it")
    given_up = (await world.ask(open_one)).answer
    assert given_up == ("an operator gave it up: closed by ann: nobody has it",)


async def test_another_content_under_the_id_is_named_with_its_dead_letter(world: World) -> None:
    message = await add_message(world.pool, processed=True)
    other = await add_message(world.pool, dead=True)
    await world.pool.execute(
        "UPDATE inbox_messages SET dead_letter_reason = 'CONTENT_CONFLICT', last_error = $2"
        " WHERE message_id = $1",
        other,
        f"CONTENT_CONFLICT: {conflict_detail(str(message))}",
    )
    absent = f"it is dead-lettered and its dead letter was not found, under the id {other}"
    assert (await world.ask(message)).answer == (
        "the handler has had its effect", f"another content came under this id: {absent}",
    )  # fmt: skip
    seq = await world.dead_letter(other)
    found = await world.ask(message)
    assert found.answer[1].endswith(f"as dead letter {seq}, under the id {other}")
    assert found.next_steps == (f"{RUN} dlq show {seq}",)


async def test_a_message_without_an_ending_waits_or_is_lost(world: World) -> None:
    message = await add_message(world.pool)
    await world.pool.execute(
        "UPDATE inbox_messages SET stream = $1, stream_seq = $2", world.stream, await world.store(message)
    )
    await create_consumer(world.connection, world.stream, "durable")
    assert "waits to be delivered again" in (await world.ask(message)).answer[0]
    jetstream = world.connection.client.jetstream()
    [taken] = await (await jetstream.pull_subscribe_bind("durable", stream=world.stream)).fetch(1)
    await taken.ack_sync()
    assert "its consumer will not deliver it" in (await world.ask(message)).answer[0]
    await world.purge()
    lost = await world.ask(message)
    assert lost.answer[0].startswith("it is lost: 3 attempts had no effect, the last: no answer")
    assert f"inbox close {message}" in lost.next_steps[0]
    await world.pool.execute("UPDATE inbox_messages SET attempts = 0")
    uncounted = (await world.ask(message)).answer[0]
    assert uncounted.startswith("it is lost: no attempt counts: none was made;")


async def test_the_beginning_of_an_id_and_a_correlation_id_are_enough(world: World) -> None:
    correlation = uuid.uuid4()
    two = [await add_event(world.pool, id=UUID(f"abcd0000-0000-4000-8000-00000000000{n}")) for n in (1, 2)]
    other = await add_event(world.pool, correlation_id=correlation)
    both = await world.ask("ABCD")
    assert ([match.id for match in both.matches], both.known) == (two, True)
    assert (await world.ask(two[0])).id == str(two[0])
    assert (await world.ask(correlation)).id == str(other)
    unknown = await world.ask("abce")
    assert (unknown.answer, unknown.known) == (("no event and no message begins with abce",), False)
    for wrong in ("abc", "order-17", "'; DROP TABLE"):
        with pytest.raises(NoIdError, match=re.escape(repr(wrong))):
            await world.ask(wrong)


async def test_what_no_table_knows_is_found_in_the_streams_when_they_are_searched(world: World) -> None:
    unknown, invalid = uuid.uuid4(), uuid.uuid4()
    seq, letter = await world.store(unknown), await world.dead_letter(invalid)
    blind = await world.ask(unknown)
    assert (blind.known, "--since" in blind.next_steps[0]) == (False, True)
    found = await world.ask(unknown, since=datetime.now(UTC) - timedelta(hours=1))
    assert f"under sequence {seq}; neither table has a row of it" in found.answer[0]
    assert f"dlq redrive {letter}" in (await world.ask(invalid)).next_steps[1]


async def test_an_audit_that_cannot_be_read_is_named(world: World) -> None:
    await world.pool.execute("ALTER TABLE operator_actions RENAME TO elsewhere")
    [note] = (await world.ask(uuid.uuid4())).not_checked
    assert note.startswith("the audit: ")


async def test_the_time_within_an_id_tells_where_the_search_of_the_streams_begins(world: World) -> None:
    def of(seconds: float) -> UUID:
        at = int((datetime.now(UTC).timestamp() + seconds) * 1000)
        return UUID(int=at << 80 | 7 << 76 | 2 << 62 | uuid.uuid4().int & 0xFFFF)

    stored, elsewhere, ahead = of(-5.0), of(-5.0), of(10 * 365 * 86_400.0)
    seq = await world.store(stored)
    assert f"under sequence {seq}; neither table has a row of it" in (await world.ask(stored)).answer[0]
    nowhere = await world.ask(elsewhere)
    assert "nor did the streams store it since 20" in nowhere.answer[0]
    assert (nowhere.next_steps, nowhere.known) == ((), False)
    assert "--since" in (await world.ask(ahead)).next_steps[0]


async def test_streams_without_a_leader_are_named_and_waited_for_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request waits until the other one waits, too, and then has no answer."""
    event, _ = await world.published()
    await add_message(world.pool, message_id=event)
    await world.pool.execute("UPDATE inbox_messages SET stream = 'VIBES_EVENTS', stream_seq = 9")
    together = asyncio.Barrier(2)

    async def locate(*_: object) -> None:
        await together.wait()
        raise BrokerUnavailableError("no leader now")

    monkeypatch.setattr(looking, "locate", locate)
    async with asyncio.timeout(20):
        found = await world.ask(event)
    assert {f"stream {world.stream}: no leader now", "stream VIBES_EVENTS: no leader now"} == set(
        found.not_checked
    )
