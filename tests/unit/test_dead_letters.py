import pytest

from sea_mq_worker.inbox.dead_letter import dead_letter_message, headers_only, original_headers
from sea_mq_worker.inbox.message import DeadLetter
from sea_mq_worker.nats.headers import validation_error
from sea_mq_worker.nats.message import InboundMessage
from tests.support.builders import dead_letter, inbound_message

ID = "550e8400-e29b-41d4-a716-446655440000"
HEADERS = {"Nats-Msg-Id": ID, "Nats-Expected-Stream": "VIBESPRO_EVENTS", "ce-id": ID, "x-tenant": "a"}


def letter(source: InboundMessage | None = None, **given: object) -> DeadLetter:
    source = source or inbound_message(headers=HEADERS, seq=9, payload=b'{"n": 1.00}')
    return dead_letter(source, **({"message_id": ID, "detail": "answered\r\n422"} | given))


@pytest.mark.clause("CMD-052", "EVT-047-002")
def test_a_dead_letter_names_its_message_reason_and_attempts() -> None:
    message = dead_letter_message(letter(), context="sea")
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
    first = dead_letter_message(letter(), context="sea")
    again = dead_letter_message(letter(attempts=4, detail="other"), context="sea")
    assert first.id == again.id == first.headers["Nats-Msg-Id"] == f"dlq:sea__from_vibespro:{ID}"


def test_headers_that_speak_to_the_server_are_shelved_and_come_back() -> None:
    message = dead_letter_message(letter(), context="sea")
    assert "Nats-Expected-Stream" not in message.headers
    assert original_headers(message.headers) == HEADERS


def test_a_dead_letter_without_its_body_is_marked_and_small() -> None:
    short = headers_only(dead_letter_message(letter(), context="sea"))
    assert short.payload == b""
    assert short.headers["Dlq-Body-Omitted"] == "11"
    assert short.headers["Dlq-Stream-Sequence"] == "9"
    assert "x-tenant" not in short.headers
    assert short.id == dead_letter_message(letter(), context="sea").id


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
    message = dead_letter_message(letter(original_subject=subject), context="sea")
    assert message.subject == quoted
    assert message.headers["Dlq-Original-Subject"] == subject
    assert validation_error(message, 2**20) == ""


def test_a_subject_that_no_header_can_hold_is_quoted_there_too() -> None:
    message = dead_letter_message(letter(original_subject="a.event.x\0.v1"), context="sea")
    assert message.headers["Dlq-Original-Subject"] == "a.event.x%00.v1"
    assert validation_error(message, 2**20) == ""


def test_headers_that_cannot_be_sent_are_left_out_and_counted() -> None:
    headers = HEADERS | {"a b": "c", "": "x", "lines": "a\nb", "large": "x" * 65_000, "small": "y"}
    source = inbound_message(headers=headers)
    message = dead_letter_message(letter(source=source), context="sea")
    assert validation_error(message, 2**20) == ""
    assert original_headers(message.headers) == HEADERS | {"small": "y"}
    assert message.headers["Dlq-Headers-Omitted"] == "4"


def test_headers_that_look_shelved_come_back_as_they_were() -> None:
    headers = {"Original-Nats-Msg-Id": "x", "Dlq-Reason": "y", "Status": "503", "description": "z"}
    message = dead_letter_message(letter(source=inbound_message(headers=headers)), context="sea")
    assert not {"Status", "description"} & message.headers.keys(), "clients end a subscription at them"
    assert original_headers(message.headers) == headers
