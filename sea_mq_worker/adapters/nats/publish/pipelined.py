"""Pipelined publishing: sends without waiting, one acknowledgement per message; works on any server."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.publish.hpub import TURN_MESSAGES, frame, split, wait_for_buffer
from sea_mq_worker.adapters.nats.publish.reply_mux import (
    NOT_CONNECTED,
    PendingRequest,
    ReplyMux,
    no_permission,
)
from sea_mq_worker.domain.encoding import EncodedMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Unknown, Unsent

ReadAck: TypeAlias = Callable[[bytes, str], PublishOutcome]
"""Judges a reply by its body and its status."""


class InFlightBatch(PendingRequest):
    """The messages of one call: sent in order, acknowledged in any order.

    Attributes:
        sent: how many of them are sent, from the first.
    """

    def __init__(self, messages: Sequence[EncodedMessage], read: ReadAck) -> None:
        super().__init__()
        self._messages = messages
        self._read = read
        self._outcomes: list[PublishOutcome | None] = [None] * len(messages)
        self.sent = 0
        self._settled = 0

    def on_reply(self, token: str, data: bytes, status: str) -> None:
        """Record the reply to the message numbered ``token``."""
        if token.isdecimal() and (place := int(token)) < self.sent:
            self.settle(place, self._read(data, status))

    def deny(self, subject: str) -> None:
        """Settle the messages that were sent to a forbidden subject."""
        for index in range(self.sent):
            if self._messages[index].subject.lower() == subject:
                self.settle(index, Unknown(no_permission(subject), answered=True, refused=True))

    def settle(self, index: int, outcome: PublishOutcome) -> None:
        """Record the outcome of a message; the first outcome counts."""
        if self._outcomes[index] is None:
            self._outcomes[index] = outcome
            self._settled += 1
            if self._settled == self.sent:
                self.notify()

    async def wait_for_replies(self) -> None:
        """Wait until all sent messages have a reply, or the batch is stopped."""
        while self._settled < self.sent and not self.stopped:
            await self.change()

    def outcomes(self) -> list[PublishOutcome]:
        unknown, unsent = Unknown(self.stopped), Unsent(self.stopped or NOT_CONNECTED)
        return [
            outcome or (unknown if index < self.sent else unsent)
            for index, outcome in enumerate(self._outcomes)
        ]


class PipelinedPublisher:
    """Publishes on one connection; calls may overlap."""

    def __init__(self, connection: NatsConnection, replies: ReplyMux, read: ReadAck) -> None:
        self._connection = connection
        self._replies = replies
        self._read = read

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        """Make one attempt for each message; ``deadline`` is in the loop's time."""
        batch = InFlightBatch(messages, self._read)
        with self._replies.replies_to(batch, deadline) as prefix:
            for turn in split(messages, TURN_MESSAGES):
                await wait_for_buffer(self._connection, batch)
                if batch.stopped or not self._connection.is_connected:
                    break
                frames = [
                    frame(message, f"{prefix}{place}") for place, message in enumerate(turn, batch.sent)
                ]
                batch.sent += len(turn)
                await self._connection.client.write(frames)
            await batch.wait_for_replies()
        return batch.outcomes()
