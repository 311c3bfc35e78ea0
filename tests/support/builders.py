"""Builders of domain objects: a test names only what it is about."""

import json
import uuid
from datetime import UTC, datetime
from typing import Any

from sea_mq_worker.inbox.dead_letter import Reason, dead_letter_message
from sea_mq_worker.nats.message import InboundMessage, OutboundMessage
from sea_mq_worker.outbox.event import OutboxEvent
from sea_mq_worker.producer import Event

OCCURRED_AT = datetime(2025, 12, 28, 22, 0, tzinfo=UTC)


def claimed_event(**given: Any) -> OutboxEvent:
    """Make a claimed event."""
    defaults: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "seq": 1,
        "aggregate_type": "order",
        "aggregate_id": "o-1",
        "event_type": "order.created",
        "event_version": 1,
        "payload": b'{"total": 1.00}',
        "occurred_at": OCCURRED_AT,
        "attempts": 1,
        "failures": 0,
        "age_seconds": 0.0,
        "attempted_seconds_ago": 0.0,
    }
    return OutboxEvent(**(defaults | given))


def inbound_message(message_id: str | None = None, **given: Any) -> InboundMessage:
    """Make a delivery; ``message_id`` becomes its Nats-Msg-Id."""
    defaults: dict[str, Any] = {
        "stream": "VIBESPRO_EVENTS",
        "seq": 1,
        "consumer": "sea__from_vibespro",
        "subject": "vibespro.event.vibe_created.v1",
        "payload": json.dumps({"vibe": "calm"}).encode(),
        "headers": {"Nats-Msg-Id": message_id or str(uuid.uuid4())},
        "stored_at": OCCURRED_AT,
        "deliveries": 1,
        "reply": "",
    }
    return InboundMessage(**(defaults | given))


def dead_letter(
    source: InboundMessage | None = None, *, context: str = "sea", **given: Any
) -> OutboundMessage:
    """Make the dead letter of a message that was rejected."""
    source = source or inbound_message()
    defaults: dict[str, Any] = {
        "message_id": source.headers.get("Nats-Msg-Id", ""),
        "reason": Reason.REJECTED,
        "attempts": 3,
        "detail": "the handler answered 422",
    }
    return dead_letter_message(source, context=context, **(defaults | given))


def enqueueable(**given: Any) -> Event:
    """Make an event for a producer to enqueue."""
    defaults: dict[str, Any] = {
        "aggregate_type": "order",
        "aggregate_id": "o-1",
        "event_type": "order.created",
        "payload": {"total": 1},
    }
    return Event(**(defaults | given))
