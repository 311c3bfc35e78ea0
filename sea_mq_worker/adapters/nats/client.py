"""nats-py's client, made to outlive messages that are malformed on the wire.

A server passes on whatever bytes a producer put into a subject or a header block. Where nats-py cannot
read them, it ends its read loop without a word, again at every redelivery. The methods that meet such bytes
are not in its public API, which the pinned version and a test guard.
"""

from typing import Any

from nats.aio.client import Client


class TolerantClient(Client):
    """Reads malformed messages too: a bad header block as no headers, bad UTF-8 in a subject as U+FFFD."""

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (IndexError, UnicodeDecodeError):
            return {}

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Any:
        return super()._build_message(sid, subject.decode(errors="replace").encode(), reply, data, headers)
