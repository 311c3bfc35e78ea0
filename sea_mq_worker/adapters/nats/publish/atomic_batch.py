"""Atomic batches (server 2.12 and later): a whole chunk is stored, in consecutive sequences, or nothing.

Its use is a server with ``sync_interval: always`` and a stream of one replica: the server flushes once per
batch instead of once per message. A known message id refuses the whole batch.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.publish.acks import judge_ack
from sea_mq_worker.adapters.nats.publish.batch import BatchResult, SentBatch, is_mode_disabled
from sea_mq_worker.adapters.nats.publish.hpub import TURN_MESSAGES, frame, wait_for_buffer
from sea_mq_worker.adapters.nats.publish.reply_mux import NOT_CONNECTED, ReplyMux
from sea_mq_worker.domain.encoding import EncodedMessage, with_headers
from sea_mq_worker.domain.outcomes import Stored

_BAD_REQUEST = 400


class _AtomicBatch(SentBatch):
    """A batch with one reply, to its last message."""

    def __init__(self, messages: Sequence[EncodedMessage]) -> None:
        super().__init__(messages)
        self.answer: dict[str, Any] = {}

    def read(self, answer: dict[str, Any]) -> None:
        self.answer = self.answer or answer


class AtomicBatchPublisher:
    """Sends chunks as atomic batches; only the last message requests a reply."""

    def __init__(self, connection: NatsConnection, replies: ReplyMux, stream: str) -> None:
        self._connection = connection
        self._replies = replies
        self._stream = stream

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> BatchResult:
        """Send one batch; none of it can be stored unless its last message was sent."""
        sent_batch = _AtomicBatch(messages)
        batch = uuid.uuid4().hex
        committed = False
        with self._replies.replies_to(sent_batch, deadline) as prefix:
            committed = await self._commit(_sendings(messages, batch, f"{prefix}0"), sent_batch)
            while committed and not sent_batch.answer and not sent_batch.stopped:
                await sent_batch.change()
        return self._judge(sent_batch, batch, len(messages) if committed else 0)

    async def _commit(self, sendings: Sequence[tuple[EncodedMessage, str]], sent_batch: _AtomicBatch) -> bool:
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

    def _judge(self, sent_batch: _AtomicBatch, batch: str, sent: int) -> BatchResult:
        answer = sent_batch.answer
        outcome = judge_ack(answer, self._stream, self._connection.domain)
        if isinstance(outcome, Stored) and answer.get("batch") == batch and answer.get("count") == sent:
            return BatchResult(
                sent=sent, stored=sent, stream=outcome.stream, last_seq=outcome.seq, unbroken=True
            )
        reason = NOT_CONNECTED if isinstance(outcome, Stored) else outcome.reason
        possibly_stored = 0 if _is_refused_whole(answer) else sent
        trouble = sent_batch.stopped or reason
        return BatchResult(sent=possibly_stored, trouble=trouble, disabled=is_mode_disabled(answer))


def _sendings(messages: Sequence[EncodedMessage], batch: str, reply: str) -> list[tuple[EncodedMessage, str]]:
    sendings = []
    for number, message in enumerate(messages, start=1):
        own = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        if number == len(messages):
            own["Nats-Batch-Commit"] = "1"
        sendings.append((with_headers(message, own), reply if number == len(messages) else ""))
    return sendings


def _is_refused_whole(answer: dict[str, Any]) -> bool:
    """Return whether the stream rejected the batch before it stored any message."""
    return bool(answer.get("error")) and answer["error"].get("code") == _BAD_REQUEST
