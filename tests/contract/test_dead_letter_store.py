"""The contract of DeadLetterStore, over nats-server and the in-memory fake."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pytest
import pytest_asyncio

from sea_mq_worker.errors import ContractError
from sea_mq_worker.inbox.dead_letter import Reason, dead_letter_message, headers_only
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.message import InboundMessage, OutboundMessage
from sea_mq_worker.operators.inspection import NatsDeadLetters
from sea_mq_worker.operators.ports import DeadLetterStore
from sea_mq_worker.operators.records import DeadLetterEntry, DeadLetterFilter
from sea_mq_worker.testing.operators import InMemoryDeadLetters
from sea_mq_worker.testing.stream import InMemoryStream
from tests.support.builders import dead_letter, inbound_message
from tests.support.jetstream import connected, create_stream, store

EVERY = DeadLetterFilter()


@dataclass(kw_only=True)
class NatsWorld:
    """A dead-letter stream ``{name}_DLQ`` and the stream that its letters came from."""

    connection: NatsConnection
    name: str

    @property
    def dead_letters(self) -> DeadLetterStore:
        return NatsDeadLetters(connection=self.connection, stream=f"{self.name}_DLQ")

    async def store(self, subject: str, payload: bytes, headers: dict[str, str]) -> int:
        return await store(self.connection, subject, payload, headers)


@dataclass(kw_only=True)
class MemoryWorld:
    name: str
    streams: dict[str, InMemoryStream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for token, name in (("dlq", f"{self.name}_DLQ"), ("event", source_name(self))):
            self.streams[token] = InMemoryStream(name=name, clock=time.time)

    @property
    def dead_letters(self) -> DeadLetterStore:
        return InMemoryDeadLetters(stream=self.streams["dlq"], sources=[self.streams["event"]])

    async def store(self, subject: str, payload: bytes, headers: dict[str, str]) -> int:
        return self.streams[subject.split(".")[1]].store(subject, payload, headers).seq


World: TypeAlias = MemoryWorld | NatsWorld


@pytest_asyncio.fixture(params=["memory", "nats"])
async def world(request: pytest.FixtureRequest, nats_url: str, names: str) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld(name=names)
        return
    async with connected(nats_url) as connection:
        made = NatsWorld(connection=connection, name=names)
        await create_stream(connection, f"{names}_DLQ", f"{names}.dlq.>")
        await create_stream(connection, source_name(made), f"{names}v.event.>")
        yield made


def source_name(world: "World") -> str:
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
    return dead_letter_message(dead_letter(source(world), **given), context=world.name)


async def put(world: World, letter: OutboundMessage) -> DeadLetterEntry:
    seq = await world.store(letter.subject, letter.payload, dict(letter.headers))
    return await world.dead_letters.show(seq)


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
    dead_letters = world.dead_letters
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


async def test_the_source_of_an_entry_is_read_from_its_stream(world: World) -> None:
    stored = source(world, b'{"large": true}')
    seq = await world.store(stored.subject, stored.payload, {"Nats-Msg-Id": "a"})
    entry = replace(await put(world, headers_only(letter(world))), stream_sequence=seq)
    assert (entry.body_omitted, entry.body_bytes, entry.payload) == (True, 14, b"")
    found = await world.dead_letters.source(entry)
    assert (found.payload, found.headers, found.seq) == (b'{"large": true}', {"Nats-Msg-Id": "a"}, seq)
    assert (found.stream, found.consumer, found.deliveries) == (entry.stream, entry.consumer, 3)
    with pytest.raises(ContractError, match="has no message 9"):
        await world.dead_letters.source(replace(entry, stream_sequence=9))


async def test_what_is_not_there_is_named(world: World) -> None:
    with pytest.raises(ContractError, match=f"{world.name}_DLQ has no message 9"):
        await world.dead_letters.show(9)
    with pytest.raises(ContractError, match="has no message 9"):
        await world.dead_letters.remove(9)
    assert await world.dead_letters.list() == []


async def test_a_foreign_message_in_the_stream_disturbs_no_other(world: World) -> None:
    await world.store(
        f"{world.name}.dlq.anything", b"\xff", {"Dlq-Attempts": "many", "Dlq-Stream-Sequence": "9" * 5000}
    )
    [entry] = await world.dead_letters.list(DeadLetterFilter(reason="", subject=""))
    assert (entry.message_id, entry.attempts, entry.stream_sequence, entry.body_bytes) == ("", 0, 0, 1)
