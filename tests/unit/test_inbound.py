import tracemalloc
import uuid
from datetime import timedelta

import pytest

from sea_mq_worker.inbox.message import (
    HandlerRequest,
    InvalidMessage,
    carries_no_event,
    content_hash,
    identify,
    parse_message,
    storage_id,
)
from tests.support.builders import OCCURRED_AT, inbound_message

ID = "550e8400-e29b-41d4-a716-446655440000"


def opened(**given: object) -> HandlerRequest:
    request = parse_message(inbound_message(ID, **given))
    assert isinstance(request, HandlerRequest)
    return request


def refused(**given: object) -> InvalidMessage:
    envelope = parse_message(inbound_message(**given))
    assert isinstance(envelope, InvalidMessage)
    return envelope


CORRELATION = str(uuid.uuid4())
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
ENVELOPE = (
    b'{"specversion": "1.0", "id": "%s", "source": "/up", "type": "made", "time": "2025-12-01T00:00:00Z", '
    b'"correlationid": "%s", "traceparent": "%s", "n": 1, "none": null, '
    % (ID.encode(), CORRELATION.encode(), TRACE.encode())
)
STRUCTURED = {"Content-Type": "application/cloudevents+json; charset=UTF-8"}


@pytest.mark.parametrize(
    "headers", [STRUCTURED, {}, {"Nats-Msg-Id": ID}], ids=["typed", "bare", "with an id"]
)
@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (b'"data": {"n": 1.00}}', b'{"n": 1.00}'),
        (b'"data_base64": "eyJuIjogMS4wMH0="}', b'{"n": 1.00}'),
        (b'"datacontenttype": "text/plain", "data": "text"}', b'"text"'),
        (b'"x": {}}', b"null"),
    ],
)
def test_a_cloudevent_in_structured_mode_is_what_is_inside(
    headers: dict[str, str], data: bytes, payload: bytes
) -> None:
    request = opened(headers=headers, payload=ENVELOPE + data)
    assert (request.message_id, request.payload) == (ID, payload)
    assert (request.occurred_at, request.correlation_id) == ("2025-12-01T00:00:00Z", CORRELATION)
    assert request.trace_headers == {"traceparent": TRACE}
    assert identify(inbound_message(headers=headers, payload=ENVELOPE + data)) == ID


@pytest.mark.parametrize(
    ("content_type", "payload", "detail"),
    [
        ("application/cloudevents-batch+json", b"[%s]" % (ENVELOPE + b'"data": 1}'), "message of its own"),
        ("application/cloudevents+json", b"[]", "no CloudEvent"),
        ("application/cloudevents+json", b'{"id": "1", "source": 1}', "no CloudEvent"),
        ("application/cloudevents+json", ENVELOPE + b'"data_base64": "!"}', "not Base64"),
        ("application/cloudevents+json", ENVELOPE + b'"data_base64": 7}', "not Base64"),
        ("application/cloudevents+json", ENVELOPE + b'"data_base64": "eA=="}', "not JSON"),
    ],
)
def test_an_unreadable_cloudevent_is_refused_with_the_reason(
    content_type: str, payload: bytes, detail: str
) -> None:
    found = refused(headers={"content-type": content_type}, payload=payload)
    assert found.reason == "INVALID_PAYLOAD"
    assert detail in found.detail


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        ({"Nats-Msg-Id": ID, "ce-type": "made"}, ENVELOPE + b'"data": 1}'),
        ({"Nats-Msg-Id": ID, "content-type": "application/json"}, ENVELOPE + b'"data": 1}'),
        ({"Nats-Msg-Id": ID}, b'{"specversion": "1.0", "id": 7}'),
    ],
)
def test_what_only_looks_like_a_cloudevent_is_a_payload(headers: dict[str, str], payload: bytes) -> None:
    assert opened(headers=headers, payload=payload).payload == payload


@pytest.mark.parametrize(
    ("headers", "payload", "by_the_server"),
    [
        ({"Nats-Msg-Id": ID}, b"{}", False),
        ({}, b"", False),
        ({"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1s"}, b"", True),
        ({"Nats-Marker-Reason": "MaxAge"}, b"{}", False),
        ({"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Msg-Id": ID}, b"{}", True),
        ({"Nats-Scheduler": "later", "ce-id": ID}, b"{}", False),
        ({"Nats-Incr": "+1"}, b'{"val":"3"}', True),
        ({"Nats-Incr": "+1", "Nats-Msg-Id": ID}, b'{"val":"3"}', False),
        ({"Nats-Rollup": "sub", "Nats-Msg-Id": ID}, b"{}", False),
        ({"Nats-Stream-Source": "OTHER 1 > > a.b", "Nats-Msg-Id": ID}, b"{}", False),
    ],
)
def test_a_message_that_the_server_makes_or_keeps_for_itself_carries_no_event(
    headers: dict[str, str], payload: bytes, *, by_the_server: bool
) -> None:
    assert carries_no_event(inbound_message(headers=headers, payload=payload)) is by_the_server


@pytest.mark.clause("PORT-047-005", "handler-request")
def test_the_request_is_made_of_subject_headers_and_body() -> None:
    correlation, causation = str(uuid.uuid4()), str(uuid.uuid4())
    headers = {
        "Nats-Msg-Id": ID,
        "ce-time": "2025-12-01T00:00:00Z",
        "ce-correlationid": correlation,
        "ce-causationid": causation,
    }
    request = opened(headers=headers, payload=b'{"n": 1.00}')
    assert request.message_id == ID
    assert request.subject == "vibespro.event.vibe_created.v1"
    assert (request.event_type, request.event_version) == ("vibe_created", 1)
    assert request.occurred_at == "2025-12-01T00:00:00Z"
    assert (request.correlation_id, request.causation_id) == (correlation, causation)
    assert request.payload == b'{"n": 1.00}'
    assert opened(headers=headers | {"ce-causationid": "not a uuid"}).causation_id is None


def test_a_message_without_a_time_occurred_when_it_was_stored() -> None:
    assert opened().occurred_at == "2025-12-28T22:00:00Z"
    assert opened(headers={"Nats-Msg-Id": ID, "ce-time": "tomorrow"}).occurred_at.startswith("2025")


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00"])
def test_a_time_outside_the_years_that_there_are_is_no_time(time: str) -> None:
    assert opened(headers={"Nats-Msg-Id": ID, "ce-time": time}).occurred_at == "2025-12-28T22:00:00Z"


def test_ce_id_stands_in_for_a_missing_message_id() -> None:
    assert opened(headers={"ce-id": ID.upper()}).message_id == ID
    assert opened(headers={"Nats-Msg-Id": "", "ce-id": ID}).message_id == ID


@pytest.mark.fault("N22")
@pytest.mark.parametrize("headers", [{}, {"Nats-Msg-Id": "42"}, {"Nats-Msg-Id": "{" + ID + "}"}])
def test_without_a_valid_id_a_message_is_known_by_where_it_is_stored(headers: dict[str, str]) -> None:
    envelope = refused(headers=headers)
    assert envelope.reason == "INVALID_MESSAGE_ID"
    assert envelope.reason not in envelope.detail
    assert envelope.message_id == refused(headers=headers, deliveries=2).message_id
    assert envelope.message_id != refused(headers=headers, seq=2).message_id
    uuid.UUID(envelope.message_id)


def test_a_recreated_stream_does_not_give_old_ids_again() -> None:
    message = inbound_message()
    later = message._replace(stored_at=OCCURRED_AT + timedelta(seconds=1))
    assert storage_id(message) != storage_id(later)


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"{", b"{'a': 1}", b"[1,]", b"01", b"1 2", b"NaN", b'{"a": Infinity}', b'"\\ud8"', b'"a\nb"'),
        *(b"\xff", b'"\xff"', b'{"\xc0\xaf": 1}', b'"\xed\xa0\x80"', b'"\xe2\x82"', b"\xef\xbb\xbf{}"),
        *(b"[" * 100_000, b"[" * 4_000_000 + b"]" * 4_000_000),
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_a_body_that_is_not_json_is_refused(payload: bytes) -> None:
    assert refused(payload=payload).reason == "INVALID_PAYLOAD"


@pytest.mark.parametrize(
    "payload",
    [
        b"1" * 5000,
        b"1e999999",
        b'{"a": 1, "a": 2}',
        b'"\\ud800"',
        b'["\\uDC00\\ud800", "\\\\ud800"]',
        '"\U0001f41f"'.encode(),
        b'"' + b"\xe2\x82\xac" * 50_000 + b'"',
        b"[" * 500 + b"]" * 500,
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_every_json_value_is_passed_on_unchanged(payload: bytes) -> None:
    assert opened(payload=payload).payload == payload


@pytest.mark.parametrize("payload", [b"[" + b"[]," * 700_000 + b"[]]", b"[" + b"1," * 1_000_000 + b"1]"])
def test_a_body_is_checked_without_building_what_it_says(payload: bytes) -> None:
    message = inbound_message(ID, payload=payload)
    tracemalloc.start()
    assert isinstance(parse_message(message), HandlerRequest)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < len(payload) / 10


@pytest.mark.clause("EventSubject")
@pytest.mark.parametrize(
    "subject",
    [
        *("", "vibespro.event.x", "vibespro.event.v1", "vibespro.command.x.v1", "vibespro.event.x.v1.extra"),
        *("vibespro.event.x.v0", "vibespro.event.x.v01", "vibespro.event.x.V1"),
        "vibespro.event.no\ufffdutf8.v1",
    ],
)
def test_a_subject_outside_the_grammar_is_refused(subject: str) -> None:
    assert refused(subject=subject).reason == "BAD_SUBJECT"


@pytest.mark.clause("event-model-16")
def test_only_a_well_formed_trace_context_is_passed_on() -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"Nats-Msg-Id": ID, "traceparent": parent, "tracestate": "a=1"}
    assert opened(headers=headers).trace_headers == {"traceparent": parent, "tracestate": "a=1"}
    assert opened(headers=headers | {"traceparent": "00-x"}).trace_headers == {}
    long = headers | {"tracestate": "a=" + "1" * 600}
    assert opened(headers=long).trace_headers == {"traceparent": parent}


def test_the_fingerprint_differs_by_content_but_not_by_delivery() -> None:
    message = inbound_message(ID)
    assert content_hash(message) == content_hash(message._replace(deliveries=9, seq=7))
    assert content_hash(message) != content_hash(message._replace(payload=b"{}"))
    assert content_hash(message) != content_hash(message._replace(subject="vibespro.event.y.v1"))
