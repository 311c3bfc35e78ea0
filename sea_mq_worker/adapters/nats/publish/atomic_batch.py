"""Publishing in order by atomic batches (server 2.12 and later): a chunk is stored whole, or not at all.

The stored messages have consecutive sequences, and a known message id refuses the whole batch, so that one
acknowledgement proves each message's place. Messages of a batch that is not certainly stored are sent again
one by one, under the same ids. The first message that is not stored ends the call. For example, with four
events:

    batch A B C D   its acknowledgement does not arrive: all four are possibly published
    send A again    Stored: the stream knows the id, because the batch had stored A
    send B again    FailedTransiently: the call ends
    C, D            Unknown, because the batch sent them; Unsent if it had not

With ``sync_interval: always`` and one replica, the server flushes once per batch instead of once per message.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.publish.acks import NO_STREAM, NOT_ATOMIC, judge_ack, number, parse
from sea_mq_worker.adapters.nats.publish.hpub import TURN_MESSAGES, frame, split, wait_for_buffer
from sea_mq_worker.adapters.nats.publish.pipelined import PipelinedPublisher
from sea_mq_worker.adapters.nats.publish.reply_mux import (
    NOT_CONNECTED,
    PendingRequest,
    ReplyMux,
    no_permission,
)
from sea_mq_worker.domain.encoding import EncodedMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Stored, Unknown, Unsent

_BATCH_MESSAGES = 1000
"""Most messages that the server takes in a batch."""
_BAD_REQUEST = 400
HELD_BACK = Unsent("held back behind a message that was not stored")


class _SentBatch(PendingRequest):
    """A batch in flight, with one reply, to its last message."""

    def __init__(self, messages: Sequence[EncodedMessage]) -> None:
        super().__init__()
        self._messages = messages
        self.answer: dict[str, Any] = {}

    def on_reply(self, token: str, data: bytes, status: str) -> None:  # noqa: ARG002 - there is one reply
        """Read the reply; a status means that no stream takes the subject."""
        if status:
            self.stop(NO_STREAM)
        else:
            self.answer = self.answer or parse(data)
            self.notify()

    def deny(self, subject: str) -> None:
        """Stop the batch if one of its subjects is forbidden."""
        if any(message.subject.lower() == subject for message in self._messages):
            self.stop(no_permission(subject))


class AtomicPublisher:
    """Publishes in order; one call at a time.

    Attributes:
        disabled: the stream no longer allows atomic batches.
    """

    def __init__(
        self, connection: NatsConnection, replies: ReplyMux, pipeline: PipelinedPublisher, stream: str
    ) -> None:
        self.disabled = False
        self._connection = connection
        self._replies = replies
        self._pipeline = pipeline
        self._stream = stream
        self._turn = asyncio.Lock()

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        """Make one attempt for each message up to the first that is not stored."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            return [Unsent("the deadline passed before its turn")] * len(messages)
        try:
            outcomes: list[PublishOutcome] = []
            # Among others, a known id refuses the whole batch.
            for chunk in split(messages, _BATCH_MESSAGES, repeats_alone=True):
                outcomes += await self._chunk(chunk, deadline)
                if not all_stored(outcomes):
                    break
        finally:
            self._turn.release()
        return outcomes + [HELD_BACK] * (len(messages) - len(outcomes))

    async def _chunk(self, chunk: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        if len(chunk) == 1:
            return await self._one_by_one(chunk, deadline)
        outcome = await self._batch(chunk, deadline)
        if isinstance(outcome, Stored):
            first = outcome.seq - len(chunk) + 1
            return [Stored(outcome.stream, first + place) for place in range(len(chunk))]
        rest = await self._one_by_one(chunk, deadline)
        if isinstance(outcome, Unsent):
            return rest
        return [outcome if isinstance(each, Unsent) else each for each in rest]

    async def _one_by_one(self, messages: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        outcomes: list[PublishOutcome] = []
        for message in messages:
            outcomes += await self._pipeline.send([message], deadline)
            if not isinstance(outcomes[-1], Stored):
                break
        return outcomes + [HELD_BACK] * (len(messages) - len(outcomes))

    async def _batch(self, messages: Sequence[EncodedMessage], deadline: float) -> Stored | Unknown | Unsent:
        """Send one batch: Stored names the last message's place, Unsent means that none can be stored."""
        batch, sent_batch = uuid.uuid4().hex, _SentBatch(messages)
        committed = False
        with self._replies.replies_to(sent_batch, deadline) as prefix:
            committed = await self._commit(_sendings(messages, batch, f"{prefix}0"), sent_batch)
            while committed and not sent_batch.answer and not sent_batch.stopped:
                await sent_batch.change()
        if not committed:
            return Unsent(sent_batch.stopped or NOT_CONNECTED)
        answer = sent_batch.answer
        outcome = judge_ack(answer, self._stream, self._connection.domain)
        if isinstance(outcome, Stored):
            if answer.get("batch") == batch and answer.get("count") == len(messages):
                return outcome
            return Unknown("the reply does not belong to the batch")
        error = answer.get("error") or {}
        self.disabled = self.disabled or number(error, "err_code") in NOT_ATOMIC
        if error.get("code") == _BAD_REQUEST:
            return Unsent(outcome.reason)
        return Unknown(sent_batch.stopped or outcome.reason)

    async def _commit(self, sendings: Sequence[tuple[EncodedMessage, str]], sent_batch: _SentBatch) -> bool:
        """Send all messages; return whether the last one, which commits the batch, was sent.

        Where a message has no room for the batch's headers, send none: the server would end the connection.
        """
        if any(message.size > self._connection.client.max_payload for message, _ in sendings):
            return False
        for start in range(0, len(sendings), TURN_MESSAGES):
            await wait_for_buffer(self._connection, sent_batch)
            if sent_batch.stopped or not self._connection.is_connected:
                return False
            turn = sendings[start : start + TURN_MESSAGES]
            await self._connection.client.write([frame(*sending) for sending in turn])
        return True


def all_stored(outcomes: Sequence[PublishOutcome]) -> bool:
    return all(isinstance(outcome, Stored) for outcome in outcomes)


def _sendings(messages: Sequence[EncodedMessage], batch: str, reply: str) -> list[tuple[EncodedMessage, str]]:
    """Add the batch's headers; only the last message commits the batch, and requests a reply."""
    last = len(messages)
    ends = [f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {place}\r\n" for place in range(1, last + 1)]
    ends[-1] += "Nats-Batch-Commit: 1\r\n"
    return [
        (message.ending(f"{end}\r\n".encode()), "" if place < last else reply)
        for place, (message, end) in enumerate(zip(messages, ends, strict=True), start=1)
    ]
