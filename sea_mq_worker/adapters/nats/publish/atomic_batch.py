"""Atomic batches (server 2.12 and later): a whole chunk is stored, in consecutive sequences, or nothing.

Its use is a server with ``sync_interval: always`` and a stream of one replica: the server flushes once per
batch instead of once per message. A known message id refuses the whole batch.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.errors import plain
from sea_mq_worker.adapters.nats.publish.acks import judge_ack
from sea_mq_worker.adapters.nats.publish.batch import BatchReplies, BatchResult, is_mode_disabled
from sea_mq_worker.adapters.nats.publish.hpub import TURN_MESSAGES, Sending, send_all
from sea_mq_worker.adapters.nats.publish.pipelined import CONNECTION_ERRORS, NOT_CONNECTED, wait_for_buffer
from sea_mq_worker.adapters.nats.publish.reply_mux import ReplyMux, stop_at
from sea_mq_worker.domain.encoding import EncodedMessage, with_headers
from sea_mq_worker.domain.outcomes import Stored

_BAD_REQUEST = 400
_TIMED_OUT = "the deadline passed before the batch was acknowledged"


class AtomicBatchPublisher:
    """Sends chunks as atomic batches; only the last message requests a reply."""

    def __init__(self, connection: NatsConnection, replies: ReplyMux, stream: str) -> None:
        self._connection = connection
        self._replies = replies
        self._stream = stream

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> BatchResult:
        """Send one batch; none of it can be stored unless its last message was sent."""
        batch_replies = BatchReplies(messages)
        prefix = self._replies.open(batch_replies)
        timer = stop_at(deadline, batch_replies, _TIMED_OUT)
        batch = uuid.uuid4().hex
        committed = False
        try:
            committed = await self._commit(_sendings(messages, batch, f"{prefix}0"), batch_replies)
            if committed:
                await batch_replies.wait()
        except CONNECTION_ERRORS as error:
            batch_replies.stop(plain(error))
        finally:
            timer.cancel()
            self._replies.close(prefix)
        answer = next((answer for _, answer in batch_replies.take()), {})
        return self._judge(answer, batch, len(messages) if committed else 0, batch_replies.stopped)

    async def _commit(self, sendings: Sequence[Sending], batch_replies: BatchReplies) -> bool:
        """Send all messages; return whether the last one, which commits the batch, was sent."""
        for start in range(0, len(sendings), TURN_MESSAGES):
            await wait_for_buffer(self._connection, batch_replies)
            if batch_replies.stopped or not self._connection.is_connected:
                return False
            await send_all(self._connection.client, sendings[start : start + TURN_MESSAGES])
        return True

    def _judge(self, answer: dict[str, Any], batch: str, sent: int, stopped: str) -> BatchResult:
        outcome = judge_ack(answer, self._stream)
        if isinstance(outcome, Stored) and answer.get("batch") == batch and answer.get("count") == sent:
            return BatchResult(
                sent=sent, stored=sent, stream=outcome.stream, last_seq=outcome.seq, unbroken=True
            )
        reason = NOT_CONNECTED if isinstance(outcome, Stored) else outcome.reason
        possibly_stored = 0 if _is_refused_whole(answer) else sent
        return BatchResult(sent=possibly_stored, trouble=stopped or reason, disabled=is_mode_disabled(answer))


def _sendings(messages: Sequence[EncodedMessage], batch: str, reply: str) -> list[Sending]:
    sendings: list[Sending] = []
    for number, message in enumerate(messages, start=1):
        own = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        if number == len(messages):
            own["Nats-Batch-Commit"] = "1"
        sendings.append((with_headers(message, own), reply if number == len(messages) else ""))
    return sendings


def _is_refused_whole(answer: dict[str, Any]) -> bool:
    """Return whether the stream rejected the batch before it stored any message."""
    return bool(answer.get("error")) and answer["error"].get("code") == _BAD_REQUEST
