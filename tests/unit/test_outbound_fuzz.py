"""Any row is encoded under its own id and with its own payload, or refused with a reason."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.nats.headers import EncodedMessage, encode
from sea_mq_worker.outbox.event import OutboxEvent
from sea_mq_worker.outbox.message import outbound_message
from tests.support.builders import claimed_event
from tests.unit.test_inbound_fuzz import JSON, TEXTS

NAMES = TEXTS | st.sampled_from(["order.paid", "a..b", "*", ">", "a\r\nNats-Rollup: all", "\0", "x" * 5000])
OBJECTS = st.dictionaries(NAMES, NAMES | st.integers() | st.none(), max_size=3).map(json.dumps)


ROWS = st.fixed_dictionaries(
    {
        "event_type": NAMES,
        "event_version": st.integers(-(2**31), 2**31 - 1),
        "aggregate_id": NAMES,
        "headers": OBJECTS | JSON.map(bytes.decode),
        "metadata": OBJECTS | JSON.map(bytes.decode),
        "payload": JSON,
    }
)


@settings(max_examples=300)
@given(row=ROWS)
def test_every_event_is_encoded_as_it_is_or_refused(row: dict[str, Any]) -> None:
    event = claimed_event(**row)
    encoded = encoded_or_refused(event)
    assert encoded
    if isinstance(encoded, EncodedMessage):
        first, *lines, blank, end = encoded.head.decode().split("\r\n")
        names = [line.partition(": ")[0] for line in lines]
        assert (first, blank, end, encoded.payload) == ("NATS/1.0", "", "", event.payload)
        assert len(set(names)) == len(names)
        assert [line for line in lines if line.lower().startswith("nats-")] == [f"Nats-Msg-Id: {event.id}"]


def encoded_or_refused(event: OutboxEvent) -> EncodedMessage | str:
    try:
        return encode(outbound_message(event, context="sea", source="/sea"), 2**20)
    except InvalidEventError as error:
        return str(error)
