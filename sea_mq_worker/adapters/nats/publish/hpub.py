"""Encodes publish frames and passes many at a time to nats-py.

nats-py's own encoding, header by header, costs more than all the rest of a publish. The two methods that
take whole frames are not public; the pinned version and a test guard them. Without them, ``publish`` is used.
"""

from collections.abc import Sequence
from typing import TypeAlias

from nats.aio.client import Client

from sea_mq_worker.domain.encoding import EncodedMessage, HeaderBlock

TURN_MESSAGES = 256
"""Messages per write, so that other tasks get to run in between."""

Sending: TypeAlias = tuple[EncodedMessage, str]
"""A message and its reply subject."""

_TAKES_FRAMES = hasattr(Client, "_send_command") and hasattr(Client, "_flush_pending")


async def send_all(client: Client, sendings: Sequence[Sending]) -> None:
    """Publish the messages in order, in one write."""
    if not _TAKES_FRAMES:
        for message, reply in sendings:
            headers = dict(HeaderBlock(message.head))
            await client.publish(message.subject, message.payload, reply, headers=headers)
        return
    await client._send_command(b"".join([frame(*sending) for sending in sendings]))  # noqa: SLF001
    queue = client._flush_queue  # noqa: SLF001
    if queue is not None and queue.empty():
        await client._flush_pending()  # noqa: SLF001


def frame(message: EncodedMessage, reply: str) -> bytes:
    """Encode HPUB: control line, headers, body."""
    control = f"HPUB {message.subject} {reply} {len(message.head)} {message.size}\r\n".encode()
    return b"".join((control, message.head, message.payload, b"\r\n"))
