"""Message lookup on in-memory fakes: the sentences and the next commands for each state."""

import asyncio
import re
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.inbox.dead_letter import conflict_detail, dead_letter_message
from sea_mq_worker.operators.lookup import MessageLookup, NoIdError
from sea_mq_worker.operators.lookup_report import LookupReport, lookup_report
from sea_mq_worker.operators.records import Discarded, StoredMessage
from sea_mq_worker.operators.streams import oldest_of
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.consumer import InMemoryConsumer
from sea_mq_worker.testing.inbox import InboxRow, InboxTable
from sea_mq_worker.testing.operators import (
    InMemoryDeadLetters,
    InMemoryLookupTables,
    InMemoryStreamInspection,
)
from sea_mq_worker.testing.outbox import OutboxRow, OutboxTable
from sea_mq_worker.testing.stream import InMemoryStream
from tests.support.builders import dead_letter, inbound_message
from tests.support.inboxes import entry

NOW = 1000.0
WHY = '--reason "..."'
RUN = "python -m sea_mq_worker"


class Tables(InMemoryLookupTables):
    """Tables whose audit this login may not read."""

    async def discarded(self, event_id: uuid.UUID) -> Discarded | None:  # noqa: ARG002
        raise ContractError("permission denied for table operator_actions")


class Streams(InMemoryStreamInspection):
    """Streams without a leader: each request waits until as many others wait, too, and then has no answer."""

    def __init__(self, waiting: int, **given: Any) -> None:
        super().__init__(**given)
        self.together = asyncio.Barrier(waiting)

    async def locate(self, stream: str, seq: int, message_id: str) -> StoredMessage | None:  # noqa: ARG002
        await self.together.wait()
        raise BrokerUnavailableError("no leader now")


class World:
    """Rows, streams and dead letters, and the lookup over them."""

    def __init__(self) -> None:
        def clock() -> float:
            return NOW

        self.outbox, self.inbox = OutboxTable(clock), InboxTable(clock)
        self.stream = InMemoryStream(name="SEA_EVENTS", clock=clock)
        self.letters = InMemoryStream(name="SEA_DLQ", clock=clock)
        self.consumers: list[InMemoryConsumer] = []
        self.limited = False
        self.tables = InMemoryLookupTables(outbox=self.outbox, inbox=self.inbox)
        self.dead_letters = InMemoryDeadLetters(stream=self.letters)

    @property
    def lookup(self) -> MessageLookup:
        streams = InMemoryStreamInspection(
            streams=[self.stream], consumers=self.consumers, limited=self.limited
        )
        return MessageLookup(
            tables=self.tables,
            broker=(streams, self.dead_letters),
            dlq_stream="SEA_DLQ",
            searched=("SEA_EVENTS",),
        )

    async def ask(self, wanted: object, **given: Any) -> LookupReport:
        return await lookup_report(str(wanted), self.lookup, **given)

    def event(self, state: str = "PENDING", id_: str = "", **given: Any) -> OutboxRow:
        id_ = id_ or str(uuid.uuid4())
        self.outbox.add(id_, ordering_key=given.pop("key", None))
        row = self.outbox.rows[id_]
        row.state = EventState(state)
        for name, value in given.items():
            setattr(row, name, value)
        return row

    def published(self) -> OutboxRow:
        row = self.event("PUBLISHED", published_at=NOW)
        row.stream, row.stream_seq = "SEA_EVENTS", self.store(row.id)
        return row

    def store(self, message_id: str) -> int:
        return self.stream.store("sea.event.x.v1", b"{}", {"Nats-Msg-Id": message_id}).seq

    def message(self, **given: Any) -> InboxRow:
        received = entry(stream="SEA_EVENTS", stream_seq=given.pop("seq", 99), consumer="durable")
        row = InboxRow(entry=received, received_at=NOW, content_hash=b"", attempts=3, **given)
        self.inbox.rows[received.message_id] = row
        return row

    def dead(self, **given: Any) -> InboxRow:
        noted = {"dead_letter_reason": "REJECTED", "last_error": "REJECTED: 422"} | given
        return self.message(dead_letter_begun_at=NOW, dead_lettered_at=NOW, **noted)

    def dead_letter(self, message_id: str) -> int:
        built = dead_letter_message(dead_letter(inbound_message(message_id)), context="sea")
        return self.letters.store(built.subject, built.payload, built.headers).seq


@pytest.fixture
def world() -> World:
    return World()


async def test_an_event_that_waits_names_what_it_waits_for(world: World) -> None:
    first = world.event(key="k", error="no answer", available_at=1e9)
    second, free = world.event(key="k"), world.event()
    assert "tried again at 2056-09-09" in (await world.ask(first.id)).answer[0]
    behind = await world.ask(second.id)
    assert behind.answer == (
        "it waits for 1 earlier event of its ordering key, the first PENDING: no answer",
    )
    assert behind.next_steps == (f"{RUN} where {first.id}",)
    assert (await world.ask(free.id)).answer[0].startswith("it waits for a worker since 2025-01-01 00:16:40")
    *_, last = [world.event(key="long") for _ in range(102)]
    assert "waits for 100 or more earlier events" in (await world.ask(last.id)).answer[0]


async def test_an_event_waits_for_a_dead_one_only_where_dead_ones_hold_their_key(world: World) -> None:
    dead, held = world.event("DEAD", key="k", error="too large"), world.event(key="k")
    assert "waits for a worker" in (await world.ask(held.id)).answer[0]
    found = await lookup_report(held.id, replace(world.lookup, dead_hold=True))
    assert found.answer == ("it waits for 1 earlier event of its ordering key, the first DEAD: too large",)
    assert found.next_steps == (f"{RUN} where {dead.id}",)


@pytest.mark.parametrize(
    ("token", "session"),
    [
        ("9", ""),
        ("00c0ffee12345678", "; its session lives"),
        (
            "0000dead12345678",
            "; its session is gone: a worker takes the lease over, or the lease ends by its time",
        ),
    ],
)
async def test_a_lease_names_its_worker_and_whether_its_session_lives(
    world: World, token: str, session: str
) -> None:
    world.tables.held.add("00c0ffee")
    event = world.event("CLAIMED", claimed_at=NOW, claimed_by=f"host-7#{token}", attempts=2)
    assert (await world.ask(event.id)).answer == (f"the worker host-7 is publishing it, attempt 2{session}",)
    message = world.message(locked_until=NOW + 60, locked_by=f"host-7#{token}")
    assert (await world.ask(message.entry.message_id)).answer == (
        f"the worker host-7 is handling it, attempt 3{session}",
    )


async def test_a_published_event_names_the_progress_of_each_consumer(world: World) -> None:
    event = world.published()
    for name in ("slow", "holder"):
        consumer = InMemoryConsumer(stream=world.stream, name=name, clock=lambda: NOW)
        world.consumers.append(consumer)
    [message] = await world.consumers[1].fetch(1)

    found = await world.ask(event.id)
    assert found.answer == (
        "it is published, and in SEA_EVENTS under sequence 1",
        "consumer holder of SEA_EVENTS has delivered it, and waits for it or an earlier one to end",
        "consumer slow of SEA_EVENTS has still to deliver it, after 0 others at most",
    )
    assert [step.text.split()[0] for step in found.steps] == ["written", "acknowledged", "stored"]
    await world.consumers[1].ack(message)
    assert "consumer holder of SEA_EVENTS is done with it" in (await world.ask(event.id)).answer


async def test_an_event_without_a_place_in_the_stream_is_not_called_lost(world: World) -> None:
    """An SDS-047 worker published it, and noted no place."""
    found = await world.ask(world.event("PUBLISHED", published_at=NOW).id)
    assert found.answer == ("it is published, by another worker, which noted no place in the stream",)
    assert found.next_steps == ()
    assert found.steps[-1].text == "published by another worker"


async def test_an_event_that_the_stream_has_lost_is_to_be_replayed(world: World) -> None:
    event = world.published()
    world.stream.purge()
    assert "lost it since: somebody removed message 1" in (await world.ask(event.id)).answer[0]
    world.limited = True
    dropped = await world.ask(event.id)
    assert dropped.answer == ("it was published, and is no longer in SEA_EVENTS under sequence 1",)
    event.stream_seq = world.store(str(uuid.uuid4()))
    found = await world.ask(event.id)
    assert "lost it since: the stream has another message at 2" in found.answer[0]
    assert found.next_steps == (f"{RUN} outbox replay {event.id} {WHY}", f"{RUN} doctor")
    event.stream_seq = 3
    assert "ends at 2" in (await world.ask(event.id)).answer[0]


async def test_a_dead_event_is_replayed_unless_it_can_never_be_sent(world: World) -> None:
    large = world.event("DEAD", error="too large: 2 MB")
    found = await world.ask(large.id)
    assert found.answer == ("it is DEAD and will not be published: too large: 2 MB",)
    assert found.next_steps == (f"{RUN} outbox replay {large.id} {WHY}",)
    blank = world.event("DEAD", error="INVALID_OUTBOX: event_type is blank")
    found = await world.ask(blank.id)
    assert found.next_steps == (f"{RUN} outbox discard {blank.id} {WHY}",)
    assert "can never be sent as it is" in found.answer[1]


async def test_a_discarded_event_names_the_operator_and_its_error(world: World) -> None:
    gone = uuid.uuid4()
    world.tables.discards[gone] = Discarded(
        at=EPOCH, actor="ann", reason="sent anew", event_type="order.created", error="blank"
    )
    found = await world.ask(gone)
    assert found.known
    assert found.answer == (
        "ann discarded it at 2025-01-01 00:00:00+00:00: sent anew",
        "it was a DEAD event of type order.created: blank",
    )


async def test_an_audit_that_must_not_be_read_is_named(world: World) -> None:
    world.tables = Tables(outbox=world.outbox, inbox=world.inbox)
    found = await world.ask(uuid.uuid4())
    assert found.not_checked == ("the audit: permission denied for table operator_actions",)


async def test_a_dead_lettered_message_names_its_dead_letter(world: World) -> None:
    message = world.dead().entry.message_id
    world.dead_letter(world.dead().entry.message_id)
    gone = await world.ask(message)
    assert gone.answer == ("it is dead-lettered: REJECTED: 422; its dead letter is no longer in the stream",)
    seq = world.dead_letter(message)
    found = await world.ask(message)
    assert found.answer == ("it is dead-lettered: REJECTED: 422",)
    assert found.next_steps == (f"{RUN} dlq show {seq}", f"{RUN} dlq redrive {seq} {WHY}")
    assert found.steps[0].text.startswith("received by durable: ")
    assert found.steps[-1].text == f"stored as dead letter {seq}: REJECTED"


async def test_another_content_under_the_id_is_named_with_its_dead_letter(world: World) -> None:
    message = world.message(processed_at=NOW).entry.message_id
    noted = f"CONTENT_CONFLICT: {conflict_detail(message)}"
    other = world.dead(dead_letter_reason="CONTENT_CONFLICT", last_error=noted).entry.message_id
    conflict = f"it is dead-lettered {{}}, under the id {other}"
    found = await world.ask(message)
    absent = conflict.format("and its dead letter was not found")
    assert found.answer == (
        "the handler has had its effect", f"another content came under this id: {absent}",
    )  # fmt: skip
    seq = world.dead_letter(other)
    found = await world.ask(message)
    assert found.answer[1].endswith(conflict.format(f"as dead letter {seq}"))
    assert found.next_steps == (f"{RUN} dlq show {seq}",)


async def test_a_message_without_an_ending_waits_or_is_lost(world: World) -> None:
    waiting = world.message()
    waiting.entry = waiting.entry._replace(stream_seq=world.store(waiting.entry.message_id))
    consumer = InMemoryConsumer(stream=world.stream, name="durable", clock=lambda: NOW)
    world.consumers.append(consumer)
    asked = waiting.entry.message_id
    assert "waits to be delivered again" in (await world.ask(asked)).answer[0]
    [message] = await consumer.fetch(1)
    await consumer.ack(message)
    assert "its consumer will not deliver it" in (await world.ask(asked)).answer[0]
    world.stream.purge()
    lost = await world.ask(asked)
    assert lost.answer[0].startswith("it is lost: 3 attempts had no effect, the last: no answer")
    waiting.attempts = 0
    assert (await world.ask(asked)).answer[0].startswith("it is lost: no attempt counts: none was made;")
    assert f"inbox close {asked}" in lost.next_steps[0]


async def test_a_message_that_was_given_up_names_who_did_it(world: World) -> None:
    closed = world.dead(dead_letter_reason="CLOSED", last_error="closed by ann: nobody has it")
    assert (await world.ask(closed.entry.message_id)).answer == (
        "an operator gave it up: closed by ann: nobody has it",
    )


async def test_the_beginning_of_an_id_and_a_correlation_id_are_enough(world: World) -> None:
    correlation = uuid.uuid4()
    two = [world.event(id_=f"abcd0000-0000-4000-8000-00000000000{n}").id for n in (1, 2)]
    other = world.event(correlation_id=str(correlation))

    both = await world.ask("ABCD")
    assert [str(match.id) for match in both.matches] == two
    assert both.known
    assert (await world.ask(two[0])).id == two[0]
    assert (await world.ask(correlation)).id == other.id
    unknown = await world.ask("abce")
    assert (unknown.answer, unknown.known) == (("no event and no message begins with abce",), False)
    for wrong in ("abc", "order-17", "'; DROP TABLE"):
        with pytest.raises(NoIdError, match=re.escape(repr(wrong))):
            await world.ask(wrong)


async def test_what_no_table_knows_is_found_in_the_streams_when_they_are_searched(world: World) -> None:
    unknown, invalid = str(uuid.uuid4()), str(uuid.uuid4())
    seq, letter = world.store(unknown), world.dead_letter(invalid)

    blind = await world.ask(unknown)
    assert (blind.known, "--since" in blind.next_steps[0]) == (False, True)
    found = await world.ask(unknown, since=EPOCH - timedelta(hours=1))
    assert f"under sequence {seq}; neither table has a row of it" in found.answer[0]
    assert f"dlq redrive {letter}" in (await world.ask(invalid)).next_steps[1]


async def test_the_time_within_an_id_tells_where_the_search_of_the_streams_begins(world: World) -> None:
    def of(seconds: float) -> str:
        at = int((EPOCH.timestamp() + seconds) * 1000)
        return str(uuid.UUID(int=at << 80 | 7 << 76 | 2 << 62 | uuid.uuid4().int & 0xFFFF))

    stored, elsewhere, ahead = of(NOW - 5.0), of(NOW - 5.0), of(10 * 365 * 86_400.0)
    seq = world.store(stored)
    assert f"under sequence {seq}; neither table has a row of it" in (await world.ask(stored)).answer[0]
    nowhere = await world.ask(elsewhere)
    assert "nor did the streams store it since 2025-01-01 00:16:35" in nowhere.answer[0]
    assert (nowhere.next_steps, nowhere.known) == ((), False)
    assert "--since" in (await world.ask(ahead)).next_steps[0]


async def test_without_a_broker_the_tables_answer(world: World) -> None:
    event = world.event("PUBLISHED", stream="SEA_EVENTS", stream_seq=5, published_at=NOW)
    alone = replace(world.lookup, broker=None, absent="streams: no server")
    found = await lookup_report(event.id, alone)
    assert found.answer == ("it is published: SEA_EVENTS under sequence 5 was acknowledged",)
    assert found.not_checked == ("streams: no server",)


async def test_streams_without_a_leader_are_named_and_waited_for_together(world: World) -> None:
    event = world.published()
    row = world.message()
    row.entry = row.entry._replace(message_id=event.id, stream="VIBES_EVENTS")
    world.inbox.rows[event.id] = row
    streams = Streams(2, streams=[world.stream])
    lookup = replace(world.lookup, broker=(streams, world.dead_letters))
    async with asyncio.timeout(5):
        found = await lookup_report(event.id, lookup)
    assert found.not_checked == ("stream SEA_EVENTS: no leader now", "stream VIBES_EVENTS: no leader now")


async def test_the_oldest_message_of_all_streams_bounds_a_prune() -> None:
    now = [1e6]

    def stream(name: str, *stored_at: float) -> InMemoryStream:
        made = InMemoryStream(name=name, clock=lambda: now[0])
        for now[0] in stored_at:
            made.store("a", b"", {})
        return made

    streams = [stream("A", 9e5, 9e6), stream("B", 8e5), stream("EMPTY")]
    inspection = InMemoryStreamInspection(streams=streams)
    found = await oldest_of(inspection, ["A", "B", "EMPTY", "NONE"])
    assert found is not None
    assert (found.stream, found.since) == ("B", EPOCH + timedelta(seconds=8e5, hours=-1))
    assert await oldest_of(inspection, ["EMPTY"]) is None
