"""Dead letters: what they hold, and which of them their stream gets."""

import asyncio

import pytest

from sea_mq_worker.inbox.dead_letter import headers_only, original_headers
from sea_mq_worker.nats.headers import validation_error
from sea_mq_worker.nats.message import InboundMessage, OutboundMessage
from sea_mq_worker.testing.handler import Respond
from tests.support.builders import dead_letter, inbound_message
from tests.support.inbox_loop import LEASE, World, always
from tests.support.simulation import in_virtual_time

ID = "550e8400-e29b-41d4-a716-446655440000"
HEADERS = {"Nats-Msg-Id": ID, "Nats-Expected-Stream": "VIBESPRO_EVENTS", "ce-id": ID, "x-tenant": "a"}


def letter(source: InboundMessage | None = None, **given: object) -> OutboundMessage:
    source = source or inbound_message(headers=HEADERS, seq=9, payload=b'{"n": 1.00}')
    return dead_letter(source, **({"message_id": ID, "detail": "answered\r\n422"} | given))


@pytest.mark.clause("CMD-052", "EVT-047-002")
def test_a_dead_letter_names_its_message_reason_and_attempts() -> None:
    message = letter()
    assert message.subject == "sea.dlq.vibespro.event.vibe_created.v1"
    assert message.payload == b'{"n": 1.00}'
    assert message.headers["Dlq-Message-Id"] == ID
    assert message.headers["Dlq-Original-Subject"] == "vibespro.event.vibe_created.v1"
    assert message.headers["Dlq-Reason"] == "REJECTED"
    assert message.headers["Dlq-Attempts"] == "3"
    assert message.headers["Dlq-Detail"] == "answered 422"
    assert (message.headers["Dlq-Stream"], message.headers["Dlq-Stream-Sequence"]) == ("VIBESPRO_EVENTS", "9")


@pytest.mark.clause("CMD-052-idempotency")
def test_a_message_has_one_dead_letter_id_per_consumer() -> None:
    first = letter()
    again = letter(attempts=4, detail="other")
    assert first.id == again.id == first.headers["Nats-Msg-Id"] == f"dlq:sea__from_vibespro:{ID}"


def test_headers_that_speak_to_the_server_are_shelved_and_come_back() -> None:
    message = letter()
    assert "Nats-Expected-Stream" not in message.headers
    assert original_headers(message.headers) == HEADERS


def test_a_dead_letter_without_its_body_is_marked_and_small() -> None:
    short = headers_only(letter())
    assert short.payload == b""
    assert short.headers["Dlq-Body-Omitted"] == "11"
    assert short.headers["Dlq-Stream-Sequence"] == "9"
    assert "x-tenant" not in short.headers
    assert short.id == letter().id


@pytest.mark.parametrize(
    ("subject", "quoted"),
    [
        ("a.event.*", "sea.dlq.a.event.%2A"),
        ("a.event.>", "sea.dlq.a.event.%3E"),
        ("a.event.x\x0by.v1", "sea.dlq.a.event.x%0By.v1"),
        ("a.event." + "x" * 4000 + ".v1", "sea.dlq.a.event." + "x" * 992),
        ("..", "sea.dlq.blank"),
    ],
)
def test_a_subject_that_cannot_be_published_to_is_quoted(subject: str, quoted: str) -> None:
    message = letter(inbound_message(ID, subject=subject))
    assert message.subject == quoted
    assert message.headers["Dlq-Original-Subject"] == subject
    assert validation_error(message, 2**20) == ""


def test_a_subject_that_no_header_can_hold_is_quoted_there_too() -> None:
    message = letter(inbound_message(ID, subject="a.event.x\0.v1"))
    assert message.headers["Dlq-Original-Subject"] == "a.event.x%00.v1"
    assert validation_error(message, 2**20) == ""


def test_headers_that_cannot_be_sent_are_left_out_and_counted() -> None:
    headers = HEADERS | {"a b": "c", "": "x", "lines": "a\nb", "large": "x" * 65_000, "small": "y"}
    source = inbound_message(headers=headers)
    message = letter(source=source)
    assert validation_error(message, 2**20) == ""
    assert original_headers(message.headers) == HEADERS | {"small": "y"}
    assert message.headers["Dlq-Headers-Omitted"] == "4"


def test_headers_that_look_shelved_come_back_as_they_were() -> None:
    headers = {"Original-Nats-Msg-Id": "x", "Dlq-Reason": "y", "Status": "503", "description": "z"}
    message = letter(source=inbound_message(headers=headers))
    assert not {"Status", "description"} & message.headers.keys(), "clients end a subscription at them"
    assert original_headers(message.headers) == headers


@in_virtual_time
async def test_a_removed_dead_letter_does_not_hide_the_next_one_of_its_message() -> None:
    world = World()
    world.handler.script = always(Respond(status=422))
    async with world.consuming():
        message_id = world.send()
        for count in range(1, 4):
            await world.events.seen("message_dead_lettered", count=count)
            assert world.dead_lettered() == [(message_id, "REJECTED")]
            world.dead_letters.purge()
            del world.table.rows[message_id]
            world.send(message_id=message_id)
        await world.events.seen("message_dead_lettered", count=4)
    assert world.dead_lettered() == [(message_id, "REJECTED")]


@in_virtual_time
async def test_an_intent_that_outlasted_its_lease_is_noted_again_before_anything_is_sent() -> None:
    """The message may be another worker's by then, and so may its dead letter."""
    world = World()
    world.handler.script = always(Respond(status=422))
    world.dlq.connected = False
    message_id = world.send()
    async with world.consuming():
        await world.events.seen("circuit_opened", lambda fact: fact.circuit == "stream SEA_DLQ")
        world.inbox.down = True
        await asyncio.sleep(LEASE + 1)
        row = world.row(message_id)
        row.locked_by, row.locked_until = "w2#9", world.clock() + 2 * LEASE
        world.dlq.connected = True
        await asyncio.sleep(LEASE)
        assert world.dead_lettered() == []
        world.inbox.down = False
        await world.events.seen("leases_lost")
    assert world.dead_lettered() == []
