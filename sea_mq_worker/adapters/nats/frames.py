"""Publish frames, encoded here and handed to nats-py whole.

Its own encoding, header by header, costs more than all the rest of a publish. The two methods that take a
whole frame are not in its public API, which the pinned version and a test guard; a release without them
is met with ``publish``.
"""

from collections.abc import Mapping
from typing import cast

from nats.aio.client import Client

from sea_mq_worker.domain.messages import OutboundMessage

_TAKES_FRAMES = hasattr(Client, "_send_command") and hasattr(Client, "_flush_pending")


async def send_one(
    client: Client, message: OutboundMessage, reply: str, extra: Mapping[str, str] | None = None
) -> None:
    """Publish a message that was found sendable (domain/wire.py); an answer goes to ``reply``."""
    headers = {**message.headers, **extra} if extra else message.headers
    if not _TAKES_FRAMES:
        await client.publish(message.subject, message.payload, reply, headers=cast("dict[str, str]", headers))
        return
    await client._send_command(frame(message, headers, reply))  # noqa: SLF001
    queue = client._flush_queue  # noqa: SLF001
    if queue is not None and queue.empty():
        await client._flush_pending()  # noqa: SLF001


def frame(message: OutboundMessage, headers: Mapping[str, str], reply: str) -> bytes:
    """Encode HPUB: control line, headers, body."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    size = len(head) + len(message.payload)
    control = f"HPUB {message.subject} {reply} {len(head)} {size}\r\n".encode()
    return b"".join((control, head, message.payload, b"\r\n"))
