"""The dead-letter stream as operators see it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.manage.dead_letters import NatsDeadLetters
from sea_mq_worker.domain.dead_letter_records import DeadLetterFilter
from sea_mq_worker.domain.dead_letters import Reason, dead_letter_message, headers_only
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.messages import DeadLetter, InboundMessage, OutboundMessage
from tests.support.builders import inbound_message
from tests.support.jetstream import connected, create_stream, store


@dataclass(kw_only=True)
class World:
    """A dead-letter stream and the stream that its letters came from."""

    connection: NatsConnection
    name: str
    dead_letters: NatsDeadLetters

    def source(self, body: bytes = b'{"vibe": 1.00}') -> InboundMessage:
        return inbound_message(
            stream=f"{self.name}_EVENTS".upper(),
            seq=7,
            subject=f"{self.name}v.event.vibe_created.v1",
            payload=body,
            headers={"Nats-Msg-Id": "0c2f3b8e-0000-4000-8000-000000000001", "ce-type": "vibe_created"},
        )

    async def bury(self, letter: OutboundMessage) -> int:
        return await store(self.connection, letter.subject, letter.payload, dict(letter.headers))

    def letter(
        self, source: InboundMessage, number: int, reason: Reason = Reason.REJECTED
    ) -> OutboundMessage:
        letter = DeadLetter(
            message_id=f"0c2f3b8e-0000-4000-8000-{number:012}",
            original_subject=source.subject,
            reason=reason,
            attempts=3,
            detail="the handler answered 422",
            source=source,
        )
        return dead_letter_message(letter, context=self.name)


@pytest_asyncio.fixture
async def world(nats_url: str, names: str) -> AsyncIterator[World]:
    async with connected(nats_url) as connection:
        await create_stream(connection, f"{names}_DLQ", f"{names}.dlq.>")
        await create_stream(connection, f"{names}_EVENTS".upper(), f"{names}v.event.>")
        dead_letters = NatsDeadLetters(connection=connection, stream=f"{names}_DLQ")
        yield World(connection=connection, name=names, dead_letters=dead_letters)


@pytest.mark.clause("EVT-047-002")
async def test_an_entry_tells_all_and_gives_the_original_back(world: World) -> None:
    source = world.source()
    seq = await world.bury(world.letter(source, 1))
    entry = await world.dead_letters.show(seq)
    assert (entry.message_id, entry.original_subject, entry.reason, entry.attempts) == (
        "0c2f3b8e-0000-4000-8000-000000000001",
        source.subject,
        "REJECTED",
        3,
    )
    assert (entry.stream, entry.stream_sequence, entry.consumer) == (source.stream, 7, source.consumer)
    assert (entry.detail, entry.body_bytes, entry.body_omitted) == ("the handler answered 422", 14, False)
    original = await world.dead_letters.original(entry)
    assert (original.subject, original.payload, original.headers) == (
        source.subject,
        source.payload,
        source.headers,
    )


async def test_a_list_is_filtered_and_bounded_and_skips_what_was_removed(world: World) -> None:
    for number in range(1, 6):
        reason = Reason.EXHAUSTED if number % 2 else Reason.REJECTED
        await world.bury(world.letter(world.source(), number, reason))
    await world.dead_letters.remove(3)
    dead_letters = world.dead_letters
    assert [entry.seq for entry in await dead_letters.list()] == [1, 2, 4, 5]
    assert [entry.seq for entry in await dead_letters.list(limit=2)] == [1, 2]
    assert [entry.seq for entry in await dead_letters.list(DeadLetterFilter(reason="EXHAUSTED"))] == [1, 5]
    assert [entry.seq for entry in await dead_letters.list(DeadLetterFilter(after_seq=2))] == [4, 5]


async def test_an_omitted_body_comes_from_the_stream_it_was_in(world: World) -> None:
    stored_at = await store(world.connection, f"{world.name}v.event.vibe_created.v1", b'{"large": true}')
    source = inbound_message(
        stream=f"{world.name}_EVENTS".upper(),
        seq=stored_at,
        subject=f"{world.name}v.event.vibe_created.v1",
        payload=b'{"large": true}',
    )
    entry = await world.dead_letters.show(await world.bury(headers_only(world.letter(source, 1))))
    assert (entry.body_omitted, entry.body_bytes, entry.payload) == (True, 15, b"")
    assert (await world.dead_letters.original(entry)).payload == b'{"large": true}'


async def test_what_is_not_there_is_named(world: World) -> None:
    with pytest.raises(ContractError, match=f"{world.name}_DLQ has no message 9"):
        await world.dead_letters.show(9)
    with pytest.raises(ContractError, match="has no message 9"):
        await world.dead_letters.remove(9)
    missing = NatsDeadLetters(connection=world.connection, stream=f"{world.name}_NONE")
    with pytest.raises(ContractError, match="stream not found"):
        await missing.list()
    assert await world.dead_letters.list() == []


async def test_a_foreign_message_in_the_stream_harms_nobody(world: World) -> None:
    await store(world.connection, f"{world.name}.dlq.anything", b"\xff", {"Dlq-Attempts": "many"})
    entry = (await world.dead_letters.list())[0]
    assert (entry.message_id, entry.attempts, entry.payload) == ("", 0, b"\xff")
