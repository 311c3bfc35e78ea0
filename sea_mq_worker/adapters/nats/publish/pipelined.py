"""Pipelined publishing: sends without waiting, one acknowledgement per message; works on any server."""

import asyncio
from collections.abc import Callable, Sequence

import nats.errors
from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.connection import PENDING_BYTES_MAX, NatsConnection
from sea_mq_worker.adapters.nats.errors import plain
from sea_mq_worker.adapters.nats.publish.hpub import TURN_MESSAGES, send_all
from sea_mq_worker.adapters.nats.publish.reply_mux import PendingRequest, ReplyMux, stop_at
from sea_mq_worker.domain.encoding import EncodedMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Unknown, Unsent

NOT_CONNECTED = "not connected to NATS"
WINDOW_MESSAGES = 1000
WINDOW_BYTES = 4 * 1024 * 1024
_BUFFERED_BYTES_MAX = PENDING_BYTES_MAX - WINDOW_BYTES
_STALLED_SECONDS = 0.02
_TIMED_OUT = "the deadline passed without an acknowledgement"
CONNECTION_ERRORS = (nats.errors.Error, OSError, UnicodeError)


def no_permission(subject: str) -> str:
    """Return the reason text for a subject that the worker may not publish to."""
    return f"the worker has no permission to publish to {subject}; grant it"


class InFlightBatch:
    """The messages of one call: sent in order, acknowledged in any order."""

    def __init__(self, messages: Sequence[EncodedMessage], read: Callable[[Msg], PublishOutcome]) -> None:
        self._messages = messages
        self._read = read
        self._outcomes: list[PublishOutcome | None] = [None] * len(messages)
        self._sent = 0
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self.stopped = ""

    def on_reply(self, token: str, msg: Msg) -> None:
        """Record the reply to the message numbered ``token``."""
        if token.isdecimal() and int(token) < self._sent:
            self.settle(int(token), self._read(msg))

    def stop(self, reason: str) -> None:
        """Stop sending, and stop waiting for the outstanding replies."""
        self.stopped = self.stopped or reason
        self._notify()

    def deny(self, subject: str) -> None:
        """Settle the messages that were sent to a forbidden subject."""
        for index in range(self._sent):
            if self._messages[index].subject.lower() == subject:
                self.settle(index, Unknown(no_permission(subject), answered=True))

    def settle(self, index: int, outcome: PublishOutcome) -> None:
        """Record the outcome of a message; the first outcome counts."""
        if self._outcomes[index] is None:
            self._outcomes[index] = outcome
            self._in_flight -= 1
            self._in_flight_bytes -= self._messages[index].size
            self._notify()

    async def wait_for_window(self) -> bool:
        """Wait until the window has room; False if all messages are sent, or the batch is stopped."""
        unsent = self._sent < len(self._messages)
        while unsent and not self.stopped and not self._has_room():
            await self._change()
        return unsent and not self.stopped

    def take_sendable(self) -> range:
        """Mark the next messages that fit into the window as sent; return their numbers."""
        start = self._sent
        while self._sent < min(start + TURN_MESSAGES, len(self._messages)) and self._has_room():
            self._in_flight += 1
            self._in_flight_bytes += self._messages[self._sent].size
            self._sent += 1
        return range(start, self._sent)

    async def wait_for_replies(self) -> None:
        """Wait until all sent messages have a reply, or the batch is stopped."""
        while self._in_flight and not self.stopped:
            await self._change()

    def outcomes(self) -> list[PublishOutcome]:
        """Return an outcome for each message."""
        unknown, unsent = Unknown(self.stopped), Unsent(self.stopped or NOT_CONNECTED)
        return [
            outcome or (unknown if index < self._sent else unsent)
            for index, outcome in enumerate(self._outcomes)
        ]

    def _has_room(self) -> bool:
        fits = self._in_flight_bytes + self._messages[self._sent].size <= WINDOW_BYTES
        return self._in_flight < WINDOW_MESSAGES and (fits or not self._in_flight)

    async def _change(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class PipelinedPublisher:
    """Publishes on one connection; calls may overlap."""

    def __init__(
        self, connection: NatsConnection, replies: ReplyMux, read: Callable[[Msg], PublishOutcome]
    ) -> None:
        self._connection = connection
        self._replies = replies
        self._read = read

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        """Make one attempt for each message; ``deadline`` is in the loop's time."""
        batch = InFlightBatch(messages, self._read)
        prefix = self._replies.open(batch)
        timer = stop_at(deadline, batch, _TIMED_OUT)
        try:
            while await self._may_send(batch):
                run = batch.take_sendable()
                await send_all(
                    self._connection.client,
                    [(messages[index], f"{prefix}{index}") for index in run],
                )
            await batch.wait_for_replies()
        except CONNECTION_ERRORS as error:
            batch.stop(plain(error))
        finally:
            timer.cancel()
            self._replies.close(prefix)
        return batch.outcomes()

    async def _may_send(self, batch: InFlightBatch) -> bool:
        await wait_for_buffer(self._connection, batch)
        return await batch.wait_for_window() and self._connection.is_connected


async def wait_for_buffer(connection: NatsConnection, request: PendingRequest) -> None:
    """Yield to the loop, and wait while nats-py's buffer is so full that a publish could block in it.

    A task that is cancelled while nats-py's publish blocks would continue as if nothing had happened.
    """
    await asyncio.sleep(0)
    client = connection.client
    while client.pending_data_size > _BUFFERED_BYTES_MAX and not request.stopped:  # noqa: ASYNC110, no event tells
        await asyncio.sleep(_STALLED_SECONDS)
