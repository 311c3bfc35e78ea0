"""Publish frames, encoded here and handed to nats-py whole, many at a time.

Its own encoding, header by header, costs more than all the rest of a publish. The two methods that take
whole frames are not in its public API, which the pinned version and a test guard; a release without them
is met with ``publish``.
"""

from collections.abc import Sequence
from typing import TypeAlias

from nats.aio.client import Client

from sea_mq_worker.domain.encoding import EncodedMessage, HeaderBlock

TURN_MESSAGES = 256
"""As many are sent before others may run."""

Sending: TypeAlias = tuple[EncodedMessage, str]
"""A message and where an answer goes."""

_TAKES_FRAMES = hasattr(Client, "_send_command") and hasattr(Client, "_flush_pending")


async def send_all(client: Client, sendings: Sequence[Sending]) -> None:
    """Publish in order, in one piece."""
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
