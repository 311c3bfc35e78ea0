"""The JetStreamPublisher contract (PORT-047-003): in-memory fake, and every mode on a real server."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeAlias

import pytest

from sea_mq_worker.errors import BrokerUnavailableError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.message import (
    OutboundMessage,
    PublishOutcome,
    Rejected,
    SearchedId,
    SearchProgress,
    SearchResult,
    Stored,
    Unknown,
    Unsent,
)
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from sea_mq_worker.testing.stream import InMemoryPublisher, InMemoryStream
from tests.support.jetstream import connected, create_stream, stored_messages
from tests.support.proxy import TcpProxy, proxied
from tests.support.servers import unique
from tests.support.waiting import eventually

MAX_PAYLOAD = 1024 * 1024
WINDOW_SECONDS = 1.5
WIDE_WINDOW_SECONDS = 60
TIMEOUT_SECONDS = 5.0

Row = tuple[int, str, bytes, dict[str, str]]


class MemoryWorld:
    def __init__(self, *, keeps_order: bool) -> None:
        self.now = 1000.0
        self.stream = "MEMORY"
        self._stream = InMemoryStream(
            name=self.stream, clock=lambda: self.now, duplicate_window_seconds=WINDOW_SECONDS
        )
        self.publisher = InMemoryPublisher(
            stream=self._stream, clock=lambda: self.now, keeps_order=keeps_order, max_payload=MAX_PAYLOAD
        )

    async def rows(self) -> list[Row]:
        """Return what the stream holds: sequence, subject, body, headers."""
        return [(e.seq, e.subject, e.payload, dict(e.headers)) for e in self._stream.entries()]

    async def store(self, batch: Iterable[OutboundMessage]) -> None:
        """Store messages as another writer."""
        for each in batch:
            self._stream.store(each.subject, each.payload, each.headers)
            await asyncio.sleep(0)

    async def remove(self, seq: int) -> None:
        self._stream.remove(seq)

    async def disconnect(self) -> None:
        self.publisher.connected = False

    async def reconnect(self) -> None:
        self.publisher.connected = self.publisher.hears = True

    async def lose_acks(self) -> None:
        """From now on the server hears the publisher, and the publisher hears nothing."""
        self.publisher.hears = False

    async def let_window_end(self) -> None:
        self.now += WINDOW_SECONDS * 2

    async def widen_window(self) -> None:
        """Keep ids for longer than a test takes."""
        self._stream.duplicate_window_seconds = WIDE_WINDOW_SECONDS


class NatsWorld:
    def __init__(
        self,
        publisher: NatsJetStreamPublisher,
        stream: str,
        proxy: TcpProxy,
        observer: NatsConnection,
        other: NatsJetStreamPublisher,
    ) -> None:
        self.publisher = publisher
        self._other = other
        self.stream = stream
        self._proxy = proxy
        self._observer = observer

    async def rows(self) -> list[Row]:
        return await stored_messages(self._observer, self.stream)

    async def store(self, batch: Iterable[OutboundMessage]) -> None:
        """Store messages as another writer."""
        done = await self._other.publish_batch([*batch], timeout_seconds=TIMEOUT_SECONDS)
        assert all(isinstance(outcome, Stored | Rejected) for outcome in done), done

    async def remove(self, seq: int) -> None:
        await api(self._observer, f"STREAM.MSG.DELETE.{self.stream}", {"seq": seq})

    async def disconnect(self) -> None:
        self._proxy.refuse()
        await eventually(lambda: not self.publisher.connected)

    async def reconnect(self) -> None:
        self._proxy.heal()
        self._proxy.cut()
        await eventually(lambda: not self.publisher.connected)
        await eventually(lambda: self.publisher.connected)

    async def lose_acks(self) -> None:
        self._proxy.drop_to_client()

    async def widen_window(self) -> None:
        info = await api(self._observer, f"STREAM.INFO.{self.stream}")
        config = info["config"] | {"duplicate_window": WIDE_WINDOW_SECONDS * 10**9}
        await api(self._observer, f"STREAM.UPDATE.{self.stream}", config)

    async def let_window_end(self) -> None:
        """The server forgets an id only some time after its window."""
        probe = message(self.stream.lower())
        ended = time.monotonic() + WINDOW_SECONDS
        await self.publisher.publish(probe.subject, probe.payload, probe.headers)

        async def forgotten() -> bool:
            again = await self.publisher.publish(probe.subject, probe.payload, probe.headers)
            return isinstance(again, Stored) and not again.duplicate

        await eventually(forgotten)
        assert time.monotonic() >= ended


World: TypeAlias = MemoryWorld | NatsWorld


@pytest.fixture(params=["memory", "memory-ordered", "pipeline", "atomic"])
async def world(request: pytest.FixtureRequest, nats_url: str) -> AsyncIterator[World]:
    if request.param.startswith("memory"):
        yield MemoryWorld(keeps_order=request.param == "memory-ordered")
        return
    async with AsyncExitStack() as stack:
        yield await nats_world(stack, nats_url, request.param)


async def nats_world(stack: AsyncExitStack, nats_url: str, mode: Literal["pipeline", "atomic"]) -> NatsWorld:
    stream = unique("t").upper()
    observer = await stack.enter_async_context(connected(nats_url))
    await create_stream(
        observer,
        stream,
        f"{stream.lower()}.>",
        allow_atomic=True,
        duplicate_window=int(WINDOW_SECONDS * 1e9),
    )
    stack.push_async_callback(api, observer, f"STREAM.DELETE.{stream}")
    proxy, url = await stack.enter_async_context(proxied(nats_url))
    connection = await stack.enter_async_context(connected(url))
    publisher = NatsJetStreamPublisher(connection=connection, stream=stream, mode=mode)
    await publisher.start()
    other = NatsJetStreamPublisher(connection=observer, stream=stream, mode="pipeline")
    await other.start()
    return NatsWorld(publisher, stream, proxy, observer, other)


def message(context: str, payload: bytes = b"{}", **headers: str) -> OutboundMessage:
    message_id = str(uuid.uuid4())
    return OutboundMessage(
        id=message_id,
        subject=f"{context}.event.made.v1",
        payload=payload,
        headers={MSG_ID: message_id, **headers},
    )


def messages(world: World, count: int) -> list[OutboundMessage]:
    return [message(world.stream.lower(), b'{"n": %d}' % n) for n in range(count)]


async def publish(
    world: World, batch: Sequence[OutboundMessage], timeout_seconds: float = TIMEOUT_SECONDS
) -> list[PublishOutcome]:
    in_order = world.publisher.keeps_order
    return list(
        await world.publisher.publish_batch(batch, timeout_seconds=timeout_seconds, in_order=in_order)
    )


def again(batch: Sequence[OutboundMessage]) -> list[OutboundMessage]:
    return [each._replace(repeated=True) for each in batch]


async def publish_until_sent(world: World, batch: Sequence[OutboundMessage]) -> list[PublishOutcome]:
    """Do what a relay does: send what was held back behind a bad message again, without that message."""
    outcomes = await publish(world, batch)
    while held := [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Unsent)]:
        assert world.publisher.keeps_order
        rest = await publish(world, [batch[index] for index in held])
        for index, outcome in zip(held, rest, strict=True):
            outcomes[index] = outcome
    return outcomes


async def test_a_batch_is_stored_once_and_in_order(world: World) -> None:
    batch = messages(world, 300)

    outcomes = await publish(world, batch)

    assert world.publisher.duplicate_window_seconds == WINDOW_SECONDS
    assert outcomes == [Stored(world.stream, seq) for seq in range(1, 301)]
    assert await publish(world, []) == []
    assert [row[2] for row in await world.rows()] == [each.payload for each in batch]


@pytest.mark.clause("event-model-08", "event-model-19", "PORT-047-003", "publisher-one-attempt")
async def test_body_headers_and_subject_are_stored_as_they_are(world: World) -> None:
    own = {"ce-partitionkey": "p-1", "X-Schema": "größe;v=1", "x-lower": "a: b,  c", "traceparent": "00-1"}
    first = message(world.stream.lower(), b'{"amount": 1.00, "n": 12345678901234567890.5}\n', **own)
    second = message(world.stream.lower(), b"", **own)

    await publish(world, [first, second])

    for sent, row in zip([first, second], await world.rows(), strict=True):
        without_batch = {name: value for name, value in row[3].items() if not name.startswith("Nats-Batch-")}
        assert (row[1], row[2], without_batch) == (sent.subject, sent.payload, dict(sent.headers))


@pytest.mark.clause("lifecycle-17", "CMD-050-idempotency")
async def test_a_repeat_inside_the_window_is_a_duplicate_and_names_the_first_copy(world: World) -> None:
    batch = messages(world, 5)
    first = await publish(world, batch)

    second = await publish(world, again(batch))

    assert second == [Stored(world.stream, outcome.seq, duplicate=True) for outcome in stored(first)]
    assert len(await world.rows()) == 5


@pytest.mark.clause("CMD-050-idempotency")
async def test_an_unmarked_repeat_inside_a_batch_is_distinguished_from_new_messages(world: World) -> None:
    old = messages(world, 3)
    await publish(world, old)
    new = messages(world, 6)

    outcomes = stored(await publish(world, [*new[:2], old[1], *new[2:]]))

    assert outcomes[2] == Stored(world.stream, 2, duplicate=True)
    rows = {row[3][MSG_ID]: row[0] for row in await world.rows()}
    assert len(rows) == 9
    assert [o.seq for o in outcomes] == [rows[each.id] for each in [*new[:2], old[1], *new[2:]]]


@pytest.mark.fault("S14")
async def test_an_id_that_another_message_has_is_refused_at_the_first_attempt(world: World) -> None:
    batch = messages(world, 5)
    await publish(world, [batch[2]._replace(payload=b"not the event")])

    outcomes = await publish(world, batch)

    assert isinstance(outcomes[2], Rejected)
    assert "ID_TAKEN" in outcomes[2].reason
    assert not any(isinstance(outcome, Rejected) for outcome in [*outcomes[:2], *outcomes[3:]])


def theirs(of: OutboundMessage) -> OutboundMessage:
    """Another writer's message under the id of one of ours."""
    return of._replace(payload=b'{"of": "another writer"}')


async def check_truth(
    world: World, batch: Sequence[OutboundMessage], outcomes: Sequence[PublishOutcome]
) -> int:
    """Require that what is Stored is the message's own, in its place, and return how many ids were taken."""
    held = {row[0]: row for row in await world.rows()}
    bodies = {row[3].get(MSG_ID): row[2] for row in held.values()}
    taken = 0
    for own, outcome in zip(batch, outcomes, strict=True):
        if isinstance(outcome, Stored):
            assert (held[outcome.seq][3][MSG_ID], held[outcome.seq][2]) == (own.id, own.payload)
        else:
            assert isinstance(outcome, Rejected), outcome
            assert "ID_TAKEN" in outcome.reason
            assert bodies[own.id] != own.payload
            taken += 1
    return taken


@pytest.mark.fault("S14")
@pytest.mark.parametrize("others", [0, 1, 2, 10, 999])
@pytest.mark.parametrize("first", [0, 3], ids=["at the beginning", "behind own messages"])
async def test_ids_that_another_writer_took_are_told_from_its_other_messages(
    world: World, others: int, first: int
) -> None:
    """As many foreign messages as taken ids: a count alone would look right."""
    await world.widen_window()
    await publish(world, messages(world, first))
    batch = messages(world, 2 * others + 3 if others < 100 else 1000)
    taken = [each for place, each in enumerate(batch) if place % 2 or others > 100][:others]
    await world.store([*messages(world, others), *map(theirs, taken)])

    outcomes = await publish_until_sent(world, batch)

    assert await check_truth(world, batch, outcomes) == others


async def test_a_taken_id_at_the_end_of_a_batch_is_told_too(world: World) -> None:
    await publish(world, messages(world, 2))
    batch = messages(world, 2)
    await world.store([theirs(batch[1])])

    outcomes = await publish_until_sent(world, batch)

    assert await check_truth(world, batch, outcomes) == 1


async def test_ids_taken_while_a_batch_is_sent_are_told_too(world: World) -> None:
    for _ in range(3):
        batch = messages(world, 1200)
        intruders = [*map(theirs, batch[400::40])]
        pairs = [intruders[place : place + 2] for place in range(0, len(intruders), 2)]

        async def intrude(pairs: Sequence[Sequence[OutboundMessage]] = pairs) -> None:
            for pair in pairs:
                await world.store(pair)

        outcomes, _ = await asyncio.gather(publish_until_sent(world, batch), intrude())
        await check_truth(world, batch, outcomes)


async def test_a_copy_that_the_service_published_itself_counts(world: World) -> None:
    """Same id and same message, also in another writing of its JSON."""
    about = {"ce-type": "made", "ce-subject": "order/1"}
    batch = [message(world.stream.lower(), b'{"b": 1.50, "a": [true, "x"]}', **about) for _ in range(7)]
    plain = {MSG_ID: batch[2].id}
    itself = [
        batch[1],
        batch[2]._replace(payload=b'{"a":[true,"x"],"b":1.5}', headers=plain),
        batch[3]._replace(payload=b'{"b": 1.50, "a": [1, "x"]}'),
        batch[4]._replace(headers={MSG_ID: batch[4].id}, subject=f"{batch[4].subject}x"),
        batch[5]._replace(headers={**batch[5].headers, "ce-subject": "order/2"}),
    ]
    await world.store(itself)

    outcomes = await publish_until_sent(world, batch)

    assert outcomes[1:3] == [Stored(world.stream, 1, duplicate=True), Stored(world.stream, 2, duplicate=True)]
    assert [type(outcome) for outcome in outcomes[3:6]] == [Rejected] * 3
    assert [outcomes[0], outcomes[6]] == [Stored(world.stream, 6), Stored(world.stream, 7)]


async def test_a_later_attempt_does_not_take_another_message_for_its_own(world: World) -> None:
    batch = messages(world, 3)
    await world.store([theirs(batch[1])])

    outcomes = await publish_until_sent(world, again(batch))

    assert await check_truth(world, batch, outcomes) == 1


async def test_an_id_whose_message_is_gone_is_taken_at_the_first_attempt_only(world: World) -> None:
    [own] = messages(world, 1)
    await world.store([theirs(own)])
    await world.remove(1)

    [first] = await publish(world, [own])
    [later] = await publish(world, again([own]))

    assert isinstance(first, Rejected)
    assert "ID_TAKEN" in first.reason
    assert later == Stored(world.stream, 1, duplicate=True)


async def test_one_id_twice_in_a_batch_is_stored_once(world: World) -> None:
    first, second = messages(world, 2)

    outcomes = stored(await publish(world, [first, second, first]))

    assert [o.seq for o in outcomes] == [1, 2, 1]
    assert len(await world.rows()) == 2


@pytest.mark.clause("PORT-047-003")
async def test_a_single_message_is_published_by_itself(world: World) -> None:
    one = message(world.stream.lower())

    assert await world.publisher.publish(one.subject, one.payload, one.headers) == Stored(world.stream, 1)
    repeat = await world.publisher.publish(one.subject, one.payload, one.headers)
    assert repeat == Stored(world.stream, 1, duplicate=True)


BAD = {
    "oversize body": {"payload": b"x" * (MAX_PAYLOAD + 1)},
    "oversize by its headers alone": {"payload": b"x" * (MAX_PAYLOAD - 20)},
    "wildcard subject": {"subject": "any.event.*.v1"},
    "full wildcard": {"subject": "any.event.>"},
    "empty token": {"subject": "any.event..v1"},
    "space in subject": {"subject": "any.event.a b.v1"},
    "line break in subject": {"subject": "any.event.a\r\nPUB x 0.v1"},
    "endless subject": {"subject": "any." + "s" * 4000},
    "no subject": {"subject": ""},
    "line break in header": {"headers": {"x": "a\r\nNats-Rollup: all"}},
    "NUL in header": {"headers": {"x": "a\0b"}},
    "outer space in header": {"headers": {"x": " a"}},
    "slash in header name": {"headers": {"a/b": "c"}},
    "blank header name": {"headers": {"": "c"}},
    "lone surrogate in header": {"headers": {"x": "\ud800"}},
    "headers beyond 64 KiB": {"headers": {"x": "y" * 70_000}},
}


@pytest.mark.clause("lifecycle-27")
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_message_that_can_never_be_sent_is_refused_alone(
    world: World, bad: dict[str, object]
) -> None:
    """P20, P23, P25, P39: the 99 others are stored, and the connection lives."""
    batch = messages(world, 100)
    batch[37] = batch[37]._replace(**bad)

    outcomes = await publish_until_sent(world, batch)

    assert isinstance(outcomes[37], Rejected)
    assert outcomes[37].reason
    others = outcomes[:37] + outcomes[38:]
    assert [outcome.seq for outcome in stored(others)] == list(range(1, 100))
    assert world.publisher.connected


@pytest.mark.clause("event-model-15")
async def test_where_order_is_kept_nothing_goes_out_behind_a_refused_message(world: World) -> None:
    batch = messages(world, 10)
    batch[4] = batch[4]._replace(headers={"bad name": "x"})

    outcomes = await publish(world, batch)

    kept = 4 if world.publisher.keeps_order else 9
    assert len(await world.rows()) == kept
    assert sum(isinstance(outcome, Unsent) for outcome in outcomes) == 9 - kept


async def test_while_disconnected_nothing_is_sent_nor_kept_for_later(world: World) -> None:
    batch = messages(world, 3)
    await world.disconnect()

    outcomes = await publish(world, batch)

    assert [type(outcome) for outcome in outcomes] == [Unsent] * 3, outcomes
    await world.reconnect()
    extra = message(world.stream.lower())
    await world.publisher.publish(extra.subject, extra.payload, extra.headers)
    assert [row[3][MSG_ID] for row in await world.rows()] == [extra.id]


async def test_a_deadline_that_has_passed_sends_nothing(world: World) -> None:
    outcomes = await publish(world, messages(world, 3), timeout_seconds=0.0)

    assert [type(outcome) for outcome in outcomes] == [Unsent] * 3, outcomes
    assert await world.rows() == []


@pytest.mark.clause("lifecycle-17", "lifecycle-24", "CMD-050-idempotency")
async def test_lost_acknowledgements_leave_it_unknown_and_the_repeat_stores_no_second_copy(
    world: World,
) -> None:
    """P03."""
    batch = messages(world, 20)
    await world.lose_acks()
    started = time.monotonic()

    outcomes = await eventually(
        lambda: publish(world, batch, timeout_seconds=0.1),
        until=lambda found: isinstance(found[0], Unknown),
        what="a batch is sent before its deadline",
    )

    assert time.monotonic() - started < TIMEOUT_SECONDS
    assert all(isinstance(outcome, Unknown | Unsent) for outcome in outcomes)
    await world.reconnect()
    repeated = stored(await publish(world, again(batch)))
    rows = {row[3][MSG_ID]: row[0] for row in await world.rows()}
    assert [o.seq for o in repeated] == [rows[each.id] for each in batch]
    ids = [row[3][MSG_ID] for row in await world.rows()]
    assert len(set(ids)) == 20


async def test_a_window_that_the_server_does_not_tell_is_unknown(world: World) -> None:
    assert await world.publisher.read_duplicate_window() == WINDOW_SECONDS
    await world.let_window_end()
    await world.lose_acks()

    assert await world.publisher.read_duplicate_window() == 0.0


async def test_calls_may_overlap(world: World) -> None:
    batches = [messages(world, 50) for _ in range(4)]

    results = await asyncio.gather(*(publish(world, batch) for batch in batches))

    rows = {row[3][MSG_ID]: row[0] for row in await world.rows()}
    for batch, outcomes in zip(batches, results, strict=True):
        assert [o.seq for o in stored(outcomes)] == [rows[each.id] for each in batch]
        assert not any(o.duplicate for o in stored(outcomes))


async def test_a_search_for_nothing_asks_whether_the_stream_answers(world: World) -> None:
    assert await world.publisher.find(()) == {}


async def test_find_returns_the_latest_stored_copy(world: World) -> None:
    """P35: what the duplicate window has forgotten is still found."""
    batch = messages(world, 5)
    await publish(world, batch)
    await world.let_window_end()
    await publish(world, [batch[1]])
    missing = message(world.stream.lower())

    looked_for = [wanted(batch[0], other_than=1), *map(wanted, (batch[1], batch[4], missing))]

    found = await world.publisher.find(looked_for)

    first, second = (row[0] for row in await world.rows() if row[3][MSG_ID] == batch[1].id)
    assert first == 2
    assert found[batch[1].id] == Stored(world.stream, second, duplicate=True)
    assert found[batch[4].id] == Stored(world.stream, 5, duplicate=True)
    assert is_over(found[missing.id])
    assert is_over(found[batch[0].id]), "a copy that does not count is none"


async def test_find_passes_over_another_message_under_the_id(world: World) -> None:
    own, taken = messages(world, 2)
    await publish(world, [own])
    await world.let_window_end()
    await world.store(map(theirs, [own, taken]))

    found = await world.publisher.find([wanted(each, message=each) for each in (own, taken)])

    assert found[own.id] == Stored(world.stream, 1, duplicate=True)
    assert is_over(found[taken.id])


async def test_a_dropped_replay_returns_the_age_of_the_earlier_copy(world: World) -> None:
    first, replayed = messages(world, 2)
    await publish(world, [first, replayed])

    [outcome] = await publish(world, [replayed._replace(repeated=True, earlier_seq=2)])

    assert isinstance(outcome, Stored)
    assert (outcome.seq, outcome.duplicate) == (2, True)
    assert outcome.seconds_ago is not None
    assert 0.0 <= outcome.seconds_ago < TIMEOUT_SECONDS


async def test_find_looks_no_further_back_than_asked(world: World) -> None:
    batch = messages(world, 2)
    await publish(world, batch)
    await world.let_window_end()

    found = await world.publisher.find([wanted(each, since_seconds=WINDOW_SECONDS / 10) for each in batch])

    assert {id_: is_over(result) for id_, result in found.items()} == {each.id: True for each in batch}


async def test_a_search_continues_where_an_earlier_one_stopped(world: World) -> None:
    late, *batch = messages(world, 7)
    await publish(world, batch)
    over = (await world.publisher.find([wanted(late)]))[late.id]
    assert isinstance(over, SearchProgress)
    await publish(world, [late])
    halfway = over._replace(through=3)

    found = await world.publisher.find([wanted(e, looked=halfway) for e in (batch[2], batch[3])])
    again = await world.publisher.find([wanted(late, looked=over._replace(until=0))])

    assert (over.through, over.until, over.is_over) == (6, 6, True)
    assert found[batch[2].id] == over, "what was read is not read again, nor what came since"
    assert found[batch[3].id] == Stored(world.stream, 4, duplicate=True)
    assert again[late.id] == Stored(world.stream, 7, duplicate=True)


async def test_find_without_a_connection_says_that_it_could_not_read(world: World) -> None:
    await world.disconnect()

    with pytest.raises(BrokerUnavailableError):
        await world.publisher.find([wanted(message(world.stream.lower()))])
    with pytest.raises(BrokerUnavailableError):
        await world.publisher.find(())


def wanted(of: OutboundMessage, **given: Any) -> SearchedId:
    return SearchedId(**{"id": of.id, "since_seconds": 3600.0, "subject": of.subject} | given)


def is_over(result: SearchResult) -> bool:
    return isinstance(result, SearchProgress) and result.is_over


def stored(outcomes: Sequence[PublishOutcome]) -> list[Stored]:
    """Give the outcomes back, all of which must be Stored."""
    assert all(isinstance(outcome, Stored) for outcome in outcomes), [
        outcome for outcome in outcomes if not isinstance(outcome, Stored)
    ]
    return [outcome for outcome in outcomes if isinstance(outcome, Stored)]
