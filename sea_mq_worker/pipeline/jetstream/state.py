"""Query a stream's leader about the stream and its messages: slow for many messages, but always complete.

Others may lag behind, or have fewer messages. So a gap in what they send counts only if the leader confirms
it.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sea_mq_worker.connections import open_nats
from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.nats.connection import NatsConnection, api, reading
from sea_mq_worker.nats.errors import ApiRefusedError
from sea_mq_worker.nats.info import StreamInfo, missing_stream, stream_info
from sea_mq_worker.pipeline.jetstream.columns import ADDED, Frame
from sea_mq_worker.settings import Settings

_CONNECT_SECONDS = 10.0
_IDLE_TIMEOUT_SECONDS = 60.0
_PAUSE_SECONDS = 0.5
_NO_MESSAGE = 10037
_NO_STREAM = 10059
_REQUESTS_AT_ONCE = 32
_ROWS_MAX = 1024
_BYTES_MAX = 4 * 1024 * 1024

_T = TypeVar("_T")


def stream_state(settings: Settings, stream: str) -> StreamInfo:
    """Return the leader's state of a stream.

    Raises:
        BrokerUnavailableError: there is no answer now.
        ContractError: the stream is missing, or the settings do not let the pipeline ask.
    """
    return query_nats(settings, lambda connection: stream_info(connection, stream))


def message_time(settings: Settings, stream: str, seq: int) -> datetime | None:
    """Return when a message was stored; None: the stream lacks it. Raises as ``stream_state``."""
    message = query_nats(settings, lambda connection: stored_message(connection, stream, {"seq": seq}))
    return None if message is None else datetime.fromisoformat(message["time"])


async def stored_message(
    connection: NatsConnection, stream: str, which: dict[str, Any]
) -> dict[str, Any] | None:
    """Return a message in the format of STREAM.MSG.GET; None: the leader has no such message."""
    try:
        answer = await api(connection, f"STREAM.MSG.GET.{stream}", which)
    except ApiRefusedError as error:
        if error.err_code == _NO_MESSAGE:
            return None
        raise missing_stream(connection, stream) if error.err_code == _NO_STREAM else error from error
    with reading(f"STREAM.MSG.GET.{stream}"):
        message: dict[str, Any] = answer["message"]
    return message


def query_nats(settings: Settings, request: Callable[[NatsConnection], Awaitable[_T]]) -> _T:
    """Return the answer to a request by a connection of its own; raises as ``connected`` does."""

    async def query() -> _T:
        async with connected(settings) as connection:
            return await request(connection)

    return asyncio.run(query())


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[NatsConnection]:
    """Provide a connection during the block; a failure reaches each pending request as its error.

    Raises:
        BrokerUnavailableError: no server answers.
        ContractError: a server refuses the connection.
    """
    connection = await open_nats(
        settings,
        purpose="pipeline",
        on_event=lambda _event, _text: None,
        connect_timeout_seconds=_CONNECT_SECONDS,
    )
    try:
        yield connection
    finally:
        await connection.close()


class IdleTimeout:
    """A minute without progress, after which the last error is raised."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Restart the minute after progress."""
        self._deadline = time.monotonic() + _IDLE_TIMEOUT_SECONDS

    def pause(self, error: UnavailableError) -> None:
        """Wait half a second before the next attempt.

        Raises:
            UnavailableError: the minute is over.
        """
        if time.monotonic() > self._deadline:
            raise error
        time.sleep(_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Leader:
    """Reads messages on a subject, which may have wildcards, from the leader of one stream."""

    connection: NatsConnection
    stream: str
    subject: str

    async def first_denied(self, gaps: Sequence[tuple[int, int]]) -> int | None:
        """Return the begin of the first gap in which the leader has a message; None: there is no such gap."""
        for at in range(0, len(gaps), _REQUESTS_AT_ONCE):
            some = gaps[at : at + _REQUESTS_AT_ONCE]
            found = await self._next([first for first, _ in some])
            for (first, last), message in zip(some, found, strict=True):
                if message is not None and message["seq"] <= last:
                    return first
        return None

    async def read(self, first: int, last: int) -> tuple[list[Frame], int]:
        """Read some messages from ``first`` on, up to ``last`` at most.

        Returns the messages, and the sequence at which to continue.
        """
        frames: list[Frame] = []
        size, at = 0, first
        while at <= last and len(frames) < _ROWS_MAX and size < _BYTES_MAX:
            found = await self._next(range(at, min(at + _REQUESTS_AT_ONCE, last + 1)))
            messages = {message["seq"]: message for message in found if message}  # a gap repeats the next one
            read = [_frame(message) for seq, message in messages.items() if seq <= last]
            frames += read
            size += sum(len(head) + len(data) for head, data, *_ in read)
            at = max(messages) + 1 if found[-1] else last + 1
        return frames, at

    async def _next(self, seqs: Sequence[int]) -> list[dict[str, Any] | None]:
        """Return for each sequence the first message from there on; None: there is none."""
        requests = [{"seq": seq, "next_by_subj": self.subject} for seq in seqs]
        found = (stored_message(self.connection, self.stream, request) for request in requests)
        return await asyncio.gather(*found)


def _frame(message: dict[str, Any]) -> Frame:
    """Format a message as a direct get would have sent it."""
    own = base64.b64decode(message.get("hdrs", "")) or b"NATS/1.0\r\n\r\n"
    added = f"\r\nNats-Subject: {message['subject']}\r\nNats-Sequence: {message['seq']}\r\n"
    head = b"".join((own[:-2], ADDED, added.encode(), f"Nats-Time-Stamp: {message['time']}\r\n\r\n".encode()))
    return head, base64.b64decode(message.get("data", "")), b"", b""
