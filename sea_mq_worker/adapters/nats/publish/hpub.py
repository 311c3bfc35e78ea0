"""Splits messages, encodes publish frames, and keeps nats-py's buffer below its limit.

nats-py's own encoding, header by header, costs more than all the rest of a publish.
"""

import asyncio
from collections.abc import Iterator, Sequence

from sea_mq_worker.adapters.nats.connection import PENDING_BYTES_MAX, NatsConnection
from sea_mq_worker.adapters.nats.publish.reply_mux import PendingRequest
from sea_mq_worker.domain.encoding import EncodedMessage

TURN_MESSAGES = 256
"""Messages per write, so that other tasks get to run in between."""
_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of messages that are split off together; one larger message comes alone."""
_BUFFERED_BYTES_MAX = PENDING_BYTES_MAX - _BYTES_MAX
_STALLED_SECONDS = 0.02


def split(
    messages: Sequence[EncodedMessage], count_max: int, *, repeats_alone: bool = False
) -> Iterator[Sequence[EncodedMessage]]:
    """Split messages into parts that fit into nats-py's buffer; ``repeats_alone``: each repeat is a part."""
    start, size = 0, 0
    for index, message in enumerate(messages):
        full = index - start == count_max or size + message.size > _BYTES_MAX
        alone = repeats_alone and (message.repeated or messages[index - 1].repeated)
        if index > start and (full or alone):
            yield messages[start:index]
            start, size = index, 0
        size += message.size
    if start < len(messages):
        yield messages[start:]


def frame(message: EncodedMessage, reply: str) -> bytes:
    """Encode HPUB: control line, headers, body."""
    control = f"HPUB {message.subject} {reply} {len(message.head)} {message.size}\r\n".encode()
    return b"".join((control, message.head, message.payload, b"\r\n"))


async def wait_for_buffer(connection: NatsConnection, request: PendingRequest) -> None:
    """Yield to the loop, and wait while nats-py's buffer is so full that a publish could block in it.

    A task that is cancelled while nats-py's publish blocks would continue as if nothing had happened.
    """
    await asyncio.sleep(0)
    client = connection.client
    while client.pending_data_size > _BUFFERED_BYTES_MAX and not request.stopped:  # noqa: ASYNC110, no event tells
        await asyncio.sleep(_STALLED_SECONDS)
