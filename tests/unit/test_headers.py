"""Headers of a published event: CloudEvents in binary mode, trace context, the row's own."""

import json
import subprocess
import sys
import urllib.parse
from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.bindings import http

from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.nats.headers import EncodedMessage, encode, trace_context
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.message import EVENT_HEADER_BYTES_MAX, event_header_bytes, outbound_message
from tests.support.builders import claimed_event
from tests.support.documents import ROOT

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EVENT_ID = "550e8400-e29b-41d4-a716-446655440000"


def made(**given: object) -> OutboundMessage:
    return outbound_message(claimed_event(**given), context="sea", source="urn:sea")


def looked_through(message: OutboundMessage) -> OutboundMessage:
    """Give a message headers of which each is looked at before it is sent."""
    return message._replace(headers=dict(message.headers))


@pytest.mark.clause("terms-07", "CorrelationContext", "NatsMsgId")
def test_the_attributes_of_the_event_are_headers_and_the_body_is_the_payload() -> None:
    message = made(
        id=EVENT_ID,
        event_type="order.created",
        event_version=2,
        aggregate_type="order",
        aggregate_id="o-1",
        correlation_id=(correlation := "11111111-1111-1111-1111-111111111111"),
        causation_id=(causation := "22222222-2222-2222-2222-222222222222"),
        partition_key="tenant-7",
        payload=(payload := b'{"total": 1.00, "n": 12345678901234567890.10}'),
        occurred_at=datetime(2025, 12, 28, 23, 0, 0, 1500, timezone(timedelta(hours=1))),
    )
    assert (message.id, message.subject) == (EVENT_ID, "sea.event.order.created.v2")
    assert message.payload == payload
    assert message.headers == {
        "Nats-Msg-Id": EVENT_ID,
        "ce-specversion": "1.0",
        "ce-datacontenttype": "application/json",
        "ce-id": EVENT_ID,
        "ce-source": "urn:sea",
        "ce-type": "order.created",
        "ce-time": "2025-12-28T22:00:00.001500Z",
        "ce-subject": "order/o-1",
        "ce-eventversion": "2",
        "ce-correlationid": correlation,
        "ce-causationid": causation,
        "ce-partitionkey": "tenant-7",
    }


def test_a_row_of_the_table_reaches_encoder_parser_reserved_names_and_asyncapi() -> None:
    """In a process of its own, whose table has one row more."""
    script = """
from sea_mq_worker.nats import headers
row = headers.EventHeader("ce-tenant", "the tenant", "aggregate_id", field="correlation_id")
rest = tuple(each._replace(field="") if each.field == row.field else each for each in headers.EVENT_HEADERS)
headers.EVENT_HEADERS = (*rest, row)
headers._CORRELATION = tuple((each.field, each.name) for each in headers.EVENT_HEADERS if each.field)
from sea_mq_worker.outbox.message import outbound_message, own_header_problem
from sea_mq_worker.producer.asyncapi import asyncapi_document
from tests.support.builders import claimed_event
from tests.support.documents import ROOT
TENANT = "11111111-1111-1111-1111-111111111111"
message = outbound_message(claimed_event(aggregate_id=TENANT), context="sea", source="s")
assert message.headers["ce-tenant"] == TENANT
assert headers.CorrelationContext.of(message.headers).correlation_id == TENANT
assert own_header_problem("CE-Tenant", "x").startswith("is reserved")
document = asyncapi_document("sea", sent=(), received=(), schemas={})
assert document["components"]["schemas"]["headers"]["properties"]["ce-tenant"]["description"] == "the tenant"
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_a_row_may_name_another_content_type() -> None:
    message = made(headers='{"CE-DataContentType": "application/vnd.order+json"}')
    named = {name: value for name, value in message.headers.items() if name.lower() == "ce-datacontenttype"}
    assert named == {"CE-DataContentType": "application/vnd.order+json"}


def test_the_cloudevents_sdk_reads_a_message() -> None:
    dataschema = "https://example.com/order.paid.v2"
    message = made(
        id=EVENT_ID,
        event_type="order.paid",
        event_version=2,
        aggregate_type="order",
        aggregate_id="ordér/1 2",
        payload=b'{"order": 7}',
        headers=json.dumps({"ce-dataschema": dataschema}),
    )

    found = http.from_http_event(http.HTTPMessage(headers=dict(message.headers), body=message.payload))

    assert (found.get_id(), found.get_type(), found.get_source()) == (EVENT_ID, "order.paid", "urn:sea")
    assert (found.get_subject(), found.get_extension("eventversion")) == ("order/ordér/1 2", "2")
    assert (found.get_dataschema(), found.get_data()) == (dataschema, {"order": 7})


@pytest.mark.clause("CorrelationContext")
def test_what_the_event_has_not_is_no_header() -> None:
    names = made().headers.keys()

    assert not names & {"ce-correlationid", "ce-causationid", "ce-partitionkey", "traceparent", "tracestate"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"attempts": 1}, False), ({"attempts": 2}, True), ({"attempts": 1, "earlier_stream_seq": 7}, True)],
)
def test_only_a_first_attempt_of_a_first_lifecycle_is_no_repeat(
    given: dict[str, int], expected: bool
) -> None:
    assert made(**given).repeated is expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("plain-key_1/2", "plain-key_1/2"),
        ("two words", "two%20words"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ('say "hi"', "say%20%22hi%22"),
        ("100%", "100%25"),
        ("a\r\nNats-Rollup: all", "a%0D%0ANats-Rollup:%20all"),
        ("\u20ac\U0001f600", "%E2%82%AC%F0%9F%98%80"),
        ("tab\there", "tab%09here"),
    ],
)
def test_cloudevents_values_are_percent_encoded_and_decode_to_what_they_were(key: str, expected: str) -> None:
    message = made(partition_key=key, aggregate_id=key)

    assert message.headers["ce-partitionkey"] == expected
    assert message.headers["ce-subject"] == f"order/{expected}"
    assert urllib.parse.unquote(expected) == key
    assert encode(message, 1 << 20) == encode(looked_through(message), 1 << 20)


@pytest.mark.clause("event-model-19")
def test_the_rows_own_headers_are_delivered_as_they_are() -> None:
    own = {"X-Tenant": "größe; a=b: c", "ce-tenant": "7", "x-empty": "", "a!#$%&'*+-.^_`|~z": "1"}

    message = made(headers=json.dumps(own))

    assert {name: message.headers[name] for name in own} == own
    assert isinstance(encode(message, 1 << 20), EncodedMessage)


OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OF_METADATA = {"traceparent": PARENT, "tracestate": "a=1"}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"TraceParent": OTHER}, {"TraceParent": OTHER}),
        ({"traceparent": OTHER, "tracestate": "b=2"}, {"traceparent": OTHER, "tracestate": "b=2"}),
        ({"traceparent": OTHER, "tracestate": "none"}, {"traceparent": OTHER}),
        ({"traceparent": "none"}, OF_METADATA),
        ({"traceparent": "none", "tracestate": "b=2"}, OF_METADATA),
        ({"tracestate": "b=2"}, OF_METADATA),
    ],
)
def test_an_own_trace_context_replaces_that_of_the_metadata_only_where_it_is_well_formed(
    own: dict[str, str], expected: dict[str, str]
) -> None:
    message = made(headers=json.dumps({"x": "y", **own}), metadata=json.dumps(OF_METADATA))
    assert {n: v for n, v in message.headers.items() if n.lower().startswith("trace")} == expected
    assert message.headers["x"] == "y"


NO_HEADERS = (
    *("[]", "null", '"x"', '{"a": 1}', '{"a": null}', '{"a": ["x"]}', '{"a": {}}'),
    '{"a": ' + "9" * 5000 + "}",
    '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
)
BAD_NAMES = ("", "a b", "a:b", "a\r\nb", "größe", "a/b", "a\u0001")
BAD_VALUES = ("x\r\nNats-Rollup: all", "x\ny", "x\0", " x", "x\t")
RESERVED = (
    *("Nats-Msg-Id", "nAtS-mSg-ID", "Nats-Rollup", "nats-expected-stream", "Status", "status", "Description"),
    *("ce-id", "CE-Type", "ce-source", "ce-specversion", "ce-time", "ce-subject", "ce-eventversion"),
    *("ce-correlationid", "ce-causationid", "ce-partitionkey"),
)


@pytest.mark.clause("event-model-19")
@pytest.mark.fault("S06")
@pytest.mark.parametrize(
    "headers",
    [
        *NO_HEADERS,
        *(json.dumps({name: "x"}) for name in (*BAD_NAMES, *RESERVED)),
        *(json.dumps({"a": value}) for value in BAD_VALUES),
    ],
    ids=lambda text: text[:30],
)
def test_headers_that_cannot_be_delivered_unaltered_or_speak_to_the_server_are_refused(headers: str) -> None:
    """P39, S06: the row is dead with a reason, and the loop lives."""
    with pytest.raises(InvalidEventError, match="INVALID_OUTBOX"):
        made(headers=headers)


def test_an_event_with_the_most_headers_and_every_attribute_can_be_sent() -> None:
    names = ("ordär/o-1", "order.created", "ä")
    own = {"x": "y" * (EVENT_HEADER_BYTES_MAX - event_header_bytes(names, {"x": ""}))}
    message = made(
        aggregate_type="ordär",
        partition_key="ä",
        event_version=2**31 - 1,
        correlation_id=EVENT_ID,
        causation_id=EVENT_ID,
        headers=json.dumps(own),
        metadata=json.dumps({"traceparent": PARENT, "tracestate": f"a={'b' * 250},c={'d' * 250}"}),
    )
    assert event_header_bytes(names, own) == EVENT_HEADER_BYTES_MAX
    assert isinstance(encode(message, 2**20), EncodedMessage)


@pytest.mark.fault("S06")
def test_the_reason_names_the_header_but_not_its_value() -> None:
    with pytest.raises(InvalidEventError, match="'X-Key'") as caught:
        made(headers='{"X-Key": "secret\\nvalue"}')
    assert "secret" not in str(caught.value)


LONG = {"traceparent": PARENT, "tracestate": "t@v=1 2, ,b=2"}
BAD_STATES = (" ", "a=\r\n1", "ä=1", "none", "A=1", 5, ",".join(["a=1"] * 129))
BAD_PARENTS = (
    *("", None, [PARENT], PARENT.upper(), f"{PARENT}\r\nx: y", f"{PARENT}\n", "ff" + PARENT[2:]),
    *(f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01"),
)


@pytest.mark.clause("event-model-16")
@pytest.mark.fault("S12")
@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"traceparent": PARENT}, {"traceparent": PARENT}),
        ({**LONG, "other": 1}, LONG),
        *(({"traceparent": PARENT, "tracestate": state}, {"traceparent": PARENT}) for state in BAD_STATES),
        *(({"traceparent": parent}, {}) for parent in BAD_PARENTS),
        ({"tracestate": "a=1"}, {}),
        ([PARENT], {}),
        ("text", {}),
        (None, {}),
    ],
)
def test_only_a_well_formed_trace_context_travels(metadata: object, expected: dict[str, str]) -> None:
    """S12: metadata is untrusted text; what is malformed is left out and harms nothing."""
    text = json.dumps(metadata)

    assert trace_context(text) == expected
    sent = {n: v for n, v in made(metadata=text).headers.items() if n.startswith("trace")}
    assert sent == expected


@pytest.mark.clause("event-model-16")
@pytest.mark.parametrize("metadata", ['{"source": "import", "ordering_key": "k", "Nats-Msg-Id": "x"}', "[1]"])
def test_metadata_stays_inside(metadata: str) -> None:
    assert made(id=EVENT_ID, metadata=metadata) == made(id=EVENT_ID)


def test_metadata_beyond_reason_carries_no_trace_context() -> None:
    assert trace_context('{"n": ' + "9" * 5000 + ', "traceparent": "' + PARENT + '"}') == {
        "traceparent": PARENT
    }
    assert trace_context("[" * 100_000) == {}
