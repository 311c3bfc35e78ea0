"""Decodes nats-py's messages, and stored messages of the API, into InboundMessage."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from nats.aio.msg import Msg

from sea_mq_worker.domain.messages import InboundMessage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT_TOKENS = 9


def ack_tokens(reply: str) -> list[str]:
    """Return what a delivery's reply subject holds; empty for a status, which has none.

    ``$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<ns>.<pending>``, or with domain
    and account before the stream and a token at the end.
    """
    tokens = reply.split(".")
    first = 2 if len(tokens) == _SHORT_TOKENS else 4
    return tokens[first : first + 7]


def delivery(msg: Msg) -> InboundMessage:
    """Decode a delivery."""
    stream, consumer, deliveries, seq, _, nanoseconds, _ = ack_tokens(msg.reply)
    return InboundMessage(
        stream=stream,
        seq=int(seq),
        consumer=consumer,
        subject=msg.subject,
        payload=msg.data,
        headers=msg.headers or {},
        stored_at=_EPOCH + timedelta(microseconds=int(nanoseconds) // 1000),
        deliveries=int(deliveries),
        reply=msg.reply,
    )


def stored(
    message: Mapping[str, Any], *, stream: str, consumer: str, deliveries: int, reply: str = ""
) -> InboundMessage:
    """Decode a stored message from STREAM.MSG.GET as if it had been delivered."""
    return InboundMessage(
        stream=stream,
        seq=message["seq"],
        consumer=consumer,
        subject=message["subject"],
        payload=base64.b64decode(message.get("data", "")),
        headers=_headers(base64.b64decode(message.get("hdrs", ""))),
        stored_at=datetime.fromisoformat(message["time"]),
        deliveries=deliveries,
        reply=reply,
    )


def _headers(block: bytes) -> dict[str, str]:
    """Parse a header block as nats-py does for a delivery: the last value of a repeated name counts."""
    parted = (line.partition(b":") for line in block.split(b"\r\n")[1:])
    return {
        name.strip().decode("ascii", "replace"): value.strip().decode("utf-8", "replace")
        for name, colon, value in parted
        if colon
    }
