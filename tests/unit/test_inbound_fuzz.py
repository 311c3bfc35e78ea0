"""Whatever a stream may hold: it is opened or refused, and what is refused can be dead-lettered."""

import json
import uuid
from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from sea_mq_worker.inbox.http import request_body
from sea_mq_worker.inbox.message import HandlerRequest, content_hash, parse_message
from sea_mq_worker.nats.headers import validation_error
from tests.support.builders import dead_letter, inbound_message

MAX_PAYLOAD = 2**20
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
IDS = st.one_of(st.uuids().map(str), st.uuids().map(lambda one: str(one).upper()), TEXTS)
TIMES = st.one_of(
    TEXTS,
    st.datetimes(timezones=st.timezones()).map(datetime.isoformat),
    st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2025-W01-1"]),
)
KNOWN = st.fixed_dictionaries(
    {},
    optional={
        "Nats-Msg-Id": IDS,
        "nats-msg-id": IDS,
        "ce-id": IDS,
        "ce-time": TIMES,
        "ce-correlationid": IDS,
        "ce-causationid": IDS,
        "traceparent": st.one_of(TEXTS, st.just("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")),
        "tracestate": TEXTS,
        "Large": st.integers(0, 66_000).map("x".__mul__),
    },
)
OTHERS = st.dictionaries(TEXTS, TEXTS, max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
SUBJECTS = st.one_of(
    st.just("vibespro.event.made.v1"),
    TEXTS.map(lambda name: f"vibespro.event.{name}.v1"),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=200),
    st.integers(900, 4000).map(lambda size: f"vibespro.event.{'x' * size}.v1"),
)


@settings(max_examples=300)
@given(subject=SUBJECTS, known=KNOWN, others=OTHERS, payload=st.one_of(JSON, st.binary(max_size=60)))
def test_every_message_is_opened_or_refused(
    subject: str, known: dict[str, str], others: dict[str, str], payload: bytes
) -> None:
    message = inbound_message(subject=subject, headers=others | known, payload=payload)
    envelope = parse_message(message)
    assert str(uuid.UUID(envelope.message_id)) == envelope.message_id
    assert len(content_hash(message)) == 32
    if isinstance(envelope, HandlerRequest):
        body = json.loads(b"".join(request_body(envelope)))
        assert body["message_id"] == envelope.message_id
        assert datetime.fromisoformat(body["occurred_at"]).tzinfo is not None
    letter = dead_letter(message, message_id=envelope.message_id, detail="\0 \r\n")
    assert validation_error(letter, MAX_PAYLOAD) == ""
