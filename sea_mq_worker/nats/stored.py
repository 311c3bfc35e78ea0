"""Messages as the server gives them: delivered by a consumer, or read from their stream."""

import asyncio
import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from nats.aio.msg import Msg

from sea_mq_worker.nats.connection import NatsConnection, api, reading
from sea_mq_worker.nats.errors import ApiRefusedError
from sea_mq_worker.nats.info import ConsumerInfo
from sea_mq_worker.nats.message import InboundMessage

READ_BYTES_MAX = 4 * 1024 * 1024
"""Cap on the bytes of messages that one call reads."""
_READS_MAX = 10
"""Cap on concurrent reads; fewer are made while the consumer's filter matches few messages."""
_NO_MESSAGE = 10037
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
    """Decode a stored message from STREAM.MSG.GET as if it had been delivered.

    Of headers of one name the last counts, as nats-py reads those of a delivery.
    """
    block = base64.b64decode(message.get("hdrs", ""))
    parted = (line.partition(b":") for line in block.split(b"\r\n")[1:])
    headers = {
        name.strip().decode("ascii", "replace"): value.strip().decode("utf-8", "replace")
        for name, colon, value in parted
        if colon
    }
    return InboundMessage(
        stream=stream,
        seq=message["seq"],
        consumer=consumer,
        subject=message["subject"],
        payload=base64.b64decode(message.get("data", "")),
        headers=headers,
        stored_at=datetime.fromisoformat(message["time"]),
        deliveries=deliveries,
        reply=reply,
    )


def size_of(messages: Iterable[InboundMessage | None]) -> int:
    """Return the bytes of all messages."""
    return sum(message.size for message in messages if message is not None)


async def read_on(
    connection: NatsConnection, info: ConsumerInfo, after_seq: int, limit: int
) -> Sequence[InboundMessage]:
    """Read the next messages behind a sequence that the consumer wants, up to a few MB of them."""
    seq, found, width = after_seq, list[InboundMessage](), _READS_MAX
    while len(found) < limit and size_of(found) < READ_BYTES_MAX:
        reads = [read_next(connection, info, seq + 1 + place) for place in range(width)]
        read = {message.seq: message for message in await asyncio.gather(*reads) if message is not None}
        if not read:
            break
        found += [read[number] for number in sorted(read)]
        seq, width = found[-1].seq, min(2 * len(read), _READS_MAX)
    return found[:limit]


async def read_next(
    connection: NatsConnection, consumer: ConsumerInfo, seq: int, *, deliveries: int = 0
) -> InboundMessage | None:
    """Read the first message at or after a sequence that the consumer wants."""
    reads = [
        read_back(connection, consumer.stream, consumer.name, seq, deliveries=deliveries, next_of=subject)
        for subject in consumer.filters or (">",)
    ]
    found = filter(None, await asyncio.gather(*reads))
    return min(found, key=attrgetter("seq"), default=None)


async def read_back(
    connection: NatsConnection,
    stream: str,
    durable: str,
    seq: int,
    *,
    deliveries: int = 0,
    reply: str = "",
    next_of: str = "",
) -> InboundMessage | None:
    """Read one message as if it had been delivered; None if the stream does not have it.

    ``next_of``: read the first message of these subjects at or after the sequence. Raise
    BrokerUnavailableError without an answer, and ContractError without the stream or the right to read it.
    """
    subject, which = f"STREAM.MSG.GET.{stream}", {"seq": seq} | ({"next_by_subj": next_of} if next_of else {})
    try:
        answer = await api(connection, subject, which)
    except ApiRefusedError as error:
        if error.err_code != _NO_MESSAGE:
            raise
        return None
    with reading(subject):
        return stored(answer["message"], stream=stream, consumer=durable, deliveries=deliveries, reply=reply)
