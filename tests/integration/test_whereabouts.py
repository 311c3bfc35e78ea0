"""Where an event or message is: what is said of it, against PostgreSQL and nats-server."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.errors
import pytest

from sea_mq_worker.adapters.nats.connection import api
from sea_mq_worker.domain.dead_letters import conflict_detail
from sea_mq_worker.operations.lookup import MessageLookup, NoIdError
from sea_mq_worker.operations.lookup_report import LookupReport, lookup_report
from tests.support.jetstream import create_consumer, store
from tests.support.operators import World, world_of
from tests.support.rows import add_event, add_message
from tests.support.servers import Database

FAR_AHEAD = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True)
class Site:
    """Rows and streams to look at, and the lookout."""

    world: World
    lookout: MessageLookup

    async def ask(self, wanted: object, **given: Any) -> LookupReport:
        return await lookup_report(str(wanted), self.lookout, **given)

    async def publish(self, message_id: uuid.UUID) -> int:
        """Store what the outbox tells of as published."""
        headers = {"Nats-Msg-Id": str(message_id)}
        name = self.world.name
        seq = await store(self.world.connection, f"{name}.event.order.created.v1", b"{}", headers)
        await self.world.pool.execute(
            "UPDATE outbox_events SET stream = $1, stream_seq = $2 WHERE id = $3",
            f"{name.upper()}_EVENTS", seq, message_id,
        )  # fmt: skip
        return seq

    async def receive(self, message_id: uuid.UUID) -> int:
        """Store what the inbox tells of as received by ``durable``."""
        name, headers = self.world.name, {"Nats-Msg-Id": str(message_id)}
        seq = await store(self.world.connection, f"{name}.event.vibe.v1", b"{}", headers)
        await self.world.pool.execute(
            "UPDATE inbox_messages SET stream = $1, stream_seq = $2 WHERE message_id = $3",
            f"{name.upper()}_EVENTS", seq, message_id,
        )  # fmt: skip
        return seq


@pytest.fixture
async def site(database: Database, nats_url: str, names: str) -> AsyncIterator[Site]:
    async with world_of(database, nats_url, names) as world:
        await world.streams()
        upper = names.upper()
        lookout = MessageLookup(
            tables=world.operations,
            connection=world.connection,
            dlq_stream=f"{upper}_DLQ",
            streams=(f"{upper}_EVENTS",),
        )
        yield Site(world=world, lookout=lookout)


async def test_an_event_that_waits_names_what_it_waits_for(site: Site) -> None:
    pool = site.world.pool
    first = await add_event(pool, ordering_key="k", error="no answer", available_at=FAR_AHEAD)
    second = await add_event(pool, ordering_key="k")
    free = await add_event(pool)

    assert "tried again at 2100-01-01" in (await site.ask(first)).answer[0]
    behind = await site.ask(second)
    assert behind.answer == (
        "it waits for 1 earlier event of its ordering key, the first PENDING: no answer",
    )
    assert behind.next_steps == (f"python -m sea_mq_worker where {first}",)
    assert (await site.ask(free)).answer[0].startswith("it waits for a worker since 20")


async def test_an_event_behind_a_dead_one_waits_for_it_where_dead_ones_hold_their_key(site: Site) -> None:
    dead = await add_event(site.world.pool, "DEAD", ordering_key="k", error="too large")
    held = await add_event(site.world.pool, ordering_key="k")
    assert "waits for a worker" in (await site.ask(held)).answer[0]
    found = await lookup_report(str(held), replace(site.lookout, dead_hold=True))
    assert found.answer == ("it waits for 1 earlier event of its ordering key, the first DEAD: too large",)
    assert found.next_steps == (f"python -m sea_mq_worker where {dead}",)


async def test_a_published_event_tells_how_far_each_consumer_is(site: Site) -> None:
    world, stream = site.world, f"{site.world.name.upper()}_EVENTS"
    event = await add_event(world.pool, "PUBLISHED")
    seq = await site.publish(event)
    await create_consumer(world.connection, stream, "slow")
    await create_consumer(world.connection, stream, "late", deliver_policy="new")
    await create_consumer(world.connection, stream, "other", filter_subject=f"{world.name}.event.none")
    await create_consumer(world.connection, stream, "holder")
    [message] = await (
        await world.connection.client.jetstream().pull_subscribe_bind("holder", stream=stream)
    ).fetch(1)

    found = await site.ask(event)
    assert found.answer == (
        f"it is published, and in {stream} under sequence {seq}",
        f"consumer holder of {stream} has delivered it, and waits for it or an earlier one to end",
        f"consumer late of {stream} is done with it",
        f"consumer other of {stream} leaves it out by its filter",
        f"consumer slow of {stream} has still to deliver it, after 0 others at most",
    )
    assert [step.text.split()[0] for step in found.steps] == ["written", "acknowledged", "stored"]
    await message.ack_sync()
    assert f"consumer holder of {stream} is done with it" in (await site.ask(event)).answer


async def test_an_event_that_the_stream_has_lost_is_told_so(site: Site) -> None:
    event = await add_event(site.world.pool, "PUBLISHED")
    seq = await site.publish(uuid.uuid4())
    await site.world.pool.execute(
        "UPDATE outbox_events SET stream = $1, stream_seq = $2", f"{site.world.name.upper()}_EVENTS", seq
    )
    found = await site.ask(event)
    assert f"lost it since: the stream has another message at {seq}" in found.answer[0]
    assert found.next_steps == (
        f'python -m sea_mq_worker outbox replay {event} --reason "..."',
        "python -m sea_mq_worker doctor",
    )
    await site.world.pool.execute("UPDATE outbox_events SET stream_seq = $1", seq + 1)
    assert f"ends at {seq}" in (await site.ask(event)).answer[0]


async def test_an_event_that_the_streams_limits_have_dropped_is_not_called_lost(site: Site) -> None:
    event = await add_event(site.world.pool, "PUBLISHED")
    seq, stream = await site.publish(event), f"{site.world.name.upper()}_EVENTS"
    await site.world.pool.execute("UPDATE outbox_events SET stream = $1, stream_seq = $2", stream, seq)
    await api(site.world.connection, f"STREAM.PURGE.{stream}")
    found = await site.ask(event)
    assert found.answer == (f"it was published, and is no longer in {stream} under sequence {seq}",)


async def test_a_dead_event_tells_its_error_and_how_to_send_it_again(site: Site) -> None:
    event = await add_event(site.world.pool, "DEAD", error="too large: 2 MB")
    found = await site.ask(event)
    assert found.answer == ("it is DEAD and will not be published: too large: 2 MB",)
    assert found.next_steps == (f'python -m sea_mq_worker outbox replay {event} --reason "..."',)


async def test_a_dead_event_that_can_never_be_sent_is_to_be_discarded_and_then_tells_by_whom(
    site: Site,
) -> None:
    event = await add_event(site.world.pool, "DEAD", error="INVALID_OUTBOX: event_type is blank")
    found = await site.ask(event)
    assert found.next_steps == (f'python -m sea_mq_worker outbox discard {event} --reason "..."',)
    assert "can never be sent as it is" in found.answer[1]
    await site.world.run("outbox", "discard", str(event), "--actor", "ann", "--reason", "sent anew")
    gone = await site.ask(event)
    assert gone.known
    assert gone.answer[0].startswith("ann discarded it at ")
    assert gone.answer[0].endswith(": sent anew")
    assert "INVALID_OUTBOX: event_type is blank" in gone.answer[1]


async def test_a_dead_lettered_message_names_its_dead_letter(site: Site) -> None:
    message = await add_message(site.world.pool, dead=True)
    await site.world.dead_letter(await add_message(site.world.pool, dead=True))
    seq = await site.world.dead_letter(message)
    found = await site.ask(message)
    assert found.answer == ("it is dead-lettered: REJECTED: 422",)
    assert found.next_steps == (f'python -m sea_mq_worker dlq redrive {seq} --reason "..."',)
    assert found.steps[-1].text == f"stored as dead letter {seq}: REJECTED"


async def test_another_content_under_the_id_is_told_with_its_dead_letter(site: Site) -> None:
    message = await add_message(site.world.pool, processed=True)
    other = await add_message(site.world.pool, dead=True)
    await add_message(site.world.pool, dead=True)
    noted = f"CONTENT_CONFLICT: {conflict_detail(str(message))}"
    await site.world.pool.execute(
        "UPDATE inbox_messages SET dead_letter_reason = 'CONTENT_CONFLICT', last_error = $2"
        " WHERE message_id = $1", other, noted,
    )  # fmt: skip
    conflict = f"it is dead-lettered {{}}, under the id {other}"
    found = await site.ask(message)
    absent = conflict.format("and its dead letter was not found")
    assert found.answer == (
        "the handler has had its effect", f"another content came under this id: {absent}",
    )  # fmt: skip
    seq = await site.world.dead_letter(other)
    found = await site.ask(message)
    assert found.answer[1].endswith(conflict.format(f"as dead letter {seq}"))
    assert found.next_steps == (f"python -m sea_mq_worker dlq show {seq}",)


async def test_a_message_without_an_ending_is_waiting_or_lost(site: Site) -> None:
    world, stream = site.world, f"{site.world.name.upper()}_EVENTS"
    waiting = await add_message(world.pool)
    await site.receive(waiting)
    await create_consumer(world.connection, stream, "durable")
    assert "waits to be delivered again" in (await site.ask(waiting)).answer[0]

    await world.connection.client.jetstream().purge_stream(stream)
    lost = await site.ask(waiting)
    assert lost.answer[0].startswith("it is lost: 3 attempts had no effect")
    assert f"inbox close {waiting}" in lost.next_steps[0]


async def test_a_message_that_was_given_up_says_by_whom(site: Site) -> None:
    message = await add_message(site.world.pool)
    await site.world.operations.close([message], actor="ann", reason="nobody has it")
    assert (await site.ask(message)).answer == ("an operator gave it up: closed by ann: nobody has it",)


async def test_a_processed_message_has_had_its_effect(site: Site) -> None:
    message = await add_message(site.world.pool, processed=True)
    assert (await site.ask(message)).answer == ("the handler has had its effect",)


async def test_the_beginning_of_an_id_and_a_correlation_id_are_enough(site: Site) -> None:
    correlation = uuid.uuid4()
    twins = [await add_event(site.world.pool, id=f"abcd0000-0000-4000-8000-00000000000{n}") for n in (1, 2)]
    other = await add_event(site.world.pool, correlation_id=correlation)

    both = await site.ask("ABCD")
    assert {match.id for match in both.matches} == set(twins)
    assert (await site.ask("abcd0000-0000-4000-8000-000000000001")).id == str(twins[0])
    assert (await site.ask(correlation)).id == str(other)
    assert (await site.ask("abce")).answer == ("no event and no message begins with abce",)
    for wrong in ("abc", "order-17", "'; DROP TABLE"):
        with pytest.raises(NoIdError):
            await site.ask(wrong)


async def test_what_no_table_knows_is_found_in_the_streams_when_they_are_searched(site: Site) -> None:
    unknown = uuid.uuid4()
    seq = await site.publish(unknown)
    invalid = uuid.uuid4()
    letter = await site.world.dead_letter(invalid)

    blind = await site.ask(unknown)
    assert (blind.known, "--since" in blind.next_steps[0]) == (False, True)
    seen = await site.ask(unknown, since=datetime.now(UTC) - timedelta(hours=1))
    assert f"under sequence {seq}; neither table has a row of it" in seen.answer[0]
    assert f"dlq redrive {letter}" in (await site.ask(invalid)).next_steps[1]


async def test_without_a_broker_the_tables_answer(site: Site) -> None:
    event = await add_event(site.world.pool, "PUBLISHED")
    alone = MessageLookup(
        tables=site.lookout.tables, connection=None, dlq_stream="", streams=(), absent="streams: no server"
    )
    found = await lookup_report(str(event), alone)
    assert found.answer == ("it is published: SEA_EVENTS under sequence 5 was acknowledged",)
    assert found.not_checked == ("streams: no server",)


async def test_streams_without_a_leader_are_named_and_waited_for_together(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = await add_message(site.world.pool, dead=True)
    await site.receive(message)
    await site.world.dead_letter(message)
    both, together = asyncio.Barrier(2), []

    async def silence(subject: str, _body: bytes, *, timeout_seconds: float) -> bytes:
        async with asyncio.timeout(timeout_seconds):
            await both.wait()
        together.append(subject)
        raise nats.errors.TimeoutError

    monkeypatch.setattr(site.world.connection, "request", silence)
    found = await site.ask(message)
    assert found.answer[0].startswith("it is dead-lettered")
    name = site.world.name.upper()
    assert [text.partition(": $JS.API.STREAM.")[0] for text in found.not_checked] == [
        f"stream {name}_DLQ",
        f"stream {name}_EVENTS",
    ]
    assert all("no answer within 5 s: no leader now" in text for text in found.not_checked)
    assert len(together) == len(found.not_checked)
