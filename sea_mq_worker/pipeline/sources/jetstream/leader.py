"""Read from a stream's leader, message by message: slow, but always complete.

A direct get may be answered by a replica that lags behind, or by a mirror that has fewer messages. So a gap
in its response counts only if the leader confirms it.
"""

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.pipeline.sources.jetstream.columns import ADDED, Frame
from sea_mq_worker.pipeline.sources.jetstream.state import stored_message

_AT_ONCE = 32
_FIRST_ROUND_SEQUENCES = 8
_ROUND_SEQUENCES_MAX = 1024
_ROUND_BYTES_MAX = 4 * 1024 * 1024


class Leader:
    """Reads from the leader of one stream over one connection."""

    def __init__(self, connection: NatsConnection, stream: str, *, subject: str) -> None:
        """Read messages on ``subject``, which may have wildcards."""
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._largest = _ROUND_BYTES_MAX // _FIRST_ROUND_SEQUENCES

    async def first_denied(self, gaps: Sequence[tuple[int, int]]) -> int | None:
        """Return the begin of the first gap in which the leader has a message; None: there is no such gap."""
        for at in range(0, len(gaps), _AT_ONCE):
            some = gaps[at : at + _AT_ONCE]
            found = await asyncio.gather(*(self._next(first) for first, _ in some))
            for (first, last), message in zip(some, found, strict=True):
                if message is not None and message["seq"] <= last:
                    return first
        return None

    async def read(self, first: int, last: int) -> tuple[list[Frame], int]:
        """Read some messages from ``first`` on, up to ``last`` at most.

        Returns the messages, and the sequence at which to continue.
        """
        count = min(last - first + 1, _ROUND_SEQUENCES_MAX, max(1, _ROUND_BYTES_MAX // self._largest))
        end = first + count - 1
        size = -(-count // _AT_ONCE)
        starts = range(first, end + 1, size)
        chains = await asyncio.gather(*(self._chain(start, min(start + size - 1, end)) for start in starts))
        messages = [message for chain, _ in chains for message in chain]
        frames = [_frame(message) for message in messages]
        if frames:
            self._largest = max(len(head) + len(data) for head, data in frames)
        return frames, chains[-1][1] or last + 1

    async def _chain(self, first: int, last: int) -> tuple[list[dict[str, Any]], int | None]:
        """Return the messages up to ``last``, and the next sequence that exists after it (None: end)."""
        found: list[dict[str, Any]] = []
        at = first
        while message := await self._next(at):
            if message["seq"] > last:
                return found, message["seq"]
            found.append(message)
            at = message["seq"] + 1
        return found, None

    async def _next(self, seq: int) -> dict[str, Any] | None:
        which = {"seq": seq, "next_by_subj": self._subject}
        return await stored_message(self._connection, self._stream, which)


def _frame(message: dict[str, Any]) -> Frame:
    """Format a message as a direct get would have sent it."""
    own = base64.b64decode(message.get("hdrs", "")) or b"NATS/1.0\r\n\r\n"
    added = f"\r\nNats-Subject: {message['subject']}\r\nNats-Sequence: {message['seq']}\r\n"
    head = b"".join((own[:-2], ADDED, added.encode(), f"Nats-Time-Stamp: {message['time']}\r\n\r\n".encode()))
    return head, base64.b64decode(message.get("data", ""))
