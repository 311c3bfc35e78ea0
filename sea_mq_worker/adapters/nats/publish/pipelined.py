"""Pipelined publishing: sends without waiting, one acknowledgement per message; works on any server."""

from collections.abc import Callable, Sequence

from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.publish.hpub import (
    TURN_MESSAGES,
    WINDOW_BYTES,
    WINDOW_MESSAGES,
    frame,
    wait_for_buffer,
)
from sea_mq_worker.adapters.nats.publish.reply_mux import (
    NOT_CONNECTED,
    PendingRequest,
    ReplyMux,
    no_permission,
)
from sea_mq_worker.domain.encoding import EncodedMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Unknown, Unsent

_TIMED_OUT = "the deadline passed without an acknowledgement"


class InFlightBatch(PendingRequest):
    """The messages of one call: sent in order, acknowledged in any order."""

    def __init__(self, messages: Sequence[EncodedMessage], read: Callable[[Msg], PublishOutcome]) -> None:
        super().__init__()
        self._messages = messages
        self._read = read
        self._outcomes: list[PublishOutcome | None] = [None] * len(messages)
        self._sent = 0
        self._in_flight = 0
        self._in_flight_bytes = 0

    def on_reply(self, token: str, msg: Msg) -> None:
        """Record the reply to the message numbered ``token``."""
        if token.isdecimal() and int(token) < self._sent:
            self.settle(int(token), self._read(msg))

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
            self.notify()

    async def wait_for_window(self) -> bool:
        """Wait until the window has room; False if all messages are sent, or the batch is stopped."""
        unsent = self._sent < len(self._messages)
        while unsent and not self.stopped and not self._has_room():
            await self.change()
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
            await self.change()

    def outcomes(self) -> list[PublishOutcome]:
        unknown, unsent = Unknown(self.stopped), Unsent(self.stopped or NOT_CONNECTED)
        return [
            outcome or (unknown if index < self._sent else unsent)
            for index, outcome in enumerate(self._outcomes)
        ]

    def _has_room(self) -> bool:
        fits = self._in_flight_bytes + self._messages[self._sent].size <= WINDOW_BYTES
        return self._in_flight < WINDOW_MESSAGES and (fits or not self._in_flight)


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
        with self._replies.replies_to(batch, deadline, late=_TIMED_OUT) as prefix:
            while await self._may_send(batch):
                run = batch.take_sendable()
                await self._connection.client.write(
                    [frame(messages[index], f"{prefix}{index}") for index in run]
                )
            await batch.wait_for_replies()
        return batch.outcomes()

    async def _may_send(self, batch: InFlightBatch) -> bool:
        await wait_for_buffer(self._connection, batch)
        return await batch.wait_for_window() and self._connection.is_connected
