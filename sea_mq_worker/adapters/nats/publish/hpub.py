"""Encodes publish frames, and keeps nats-py's buffer below its limit.

nats-py's own encoding, header by header, costs more than all the rest of a publish.
"""

import asyncio

from sea_mq_worker.adapters.nats.connection import PENDING_BYTES_MAX, NatsConnection
from sea_mq_worker.adapters.nats.publish.reply_mux import PendingRequest
from sea_mq_worker.domain.encoding import EncodedMessage

TURN_MESSAGES = 256
"""Messages per write, so that other tasks get to run in between."""
WINDOW_MESSAGES = 1000
WINDOW_BYTES = 4 * 1024 * 1024
_BUFFERED_BYTES_MAX = PENDING_BYTES_MAX - WINDOW_BYTES
_STALLED_SECONDS = 0.02


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
