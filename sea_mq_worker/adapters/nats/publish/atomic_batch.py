"""Atomic batches (server 2.12 and later): all of a chunk is stored, in an unbroken run, or nothing.

Group commit where the server syncs every write. A known message id refuses the whole batch.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.errors import plain
from sea_mq_worker.adapters.nats.publish.acks import judge_ack
from sea_mq_worker.adapters.nats.publish.batch import BatchReplies, BatchResult, says_disabled
from sea_mq_worker.adapters.nats.publish.hpub import TURN_MESSAGES, Sending, send_all
from sea_mq_worker.adapters.nats.publish.pipelined import BROKEN, NOT_CONNECTED, wait_for_buffer
from sea_mq_worker.adapters.nats.publish.reply_mux import ReplyMux, stop_at
from sea_mq_worker.domain.encoding import EncodedMessage, with_headers
from sea_mq_worker.domain.outcomes import Stored

_BAD_REQUEST = 400
_TIMED_OUT = "the deadline passed before the batch was acknowledged"


class AtomicBatchPublisher:
    """Sends chunks as atomic batches; only the last message asks for an answer."""

    def __init__(self, connection: NatsConnection, replies: ReplyMux, stream: str) -> None:
        self._connection = connection
        self._replies = replies
        self._stream = stream

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> BatchResult:
        """Send one batch; unless its last message left, nothing of it can ever be stored."""
        talk = BatchReplies(messages)
        prefix = self._replies.open(talk)
        timer = stop_at(deadline, talk, _TIMED_OUT)
        batch = uuid.uuid4().hex
        committed = False
        try:
            committed = await self._commit(_sendings(messages, batch, f"{prefix}0"), talk)
            if committed:
                await talk.wait()
        except BROKEN as error:
            talk.stop(plain(error))
        finally:
            timer.cancel()
            self._replies.close(prefix)
        answer = next((answer for _, answer in talk.take()), {})
        return self._judge(answer, batch, len(messages) if committed else 0, talk.stopped)

    async def _commit(self, sendings: Sequence[Sending], talk: BatchReplies) -> bool:
        """Send all; tell whether the last one left, which commits the batch."""
        for start in range(0, len(sendings), TURN_MESSAGES):
            await wait_for_buffer(self._connection, talk)
            if talk.stopped or not self._connection.is_connected:
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
        doubtful = 0 if _refused_whole(answer) else sent
        return BatchResult(sent=doubtful, trouble=stopped or reason, disabled=says_disabled(answer))


def _sendings(messages: Sequence[EncodedMessage], batch: str, reply: str) -> list[Sending]:
    sendings: list[Sending] = []
    for number, message in enumerate(messages, start=1):
        own = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        if number == len(messages):
            own["Nats-Batch-Commit"] = "1"
        sendings.append((with_headers(message, own), reply if number == len(messages) else ""))
    return sendings


def _refused_whole(answer: dict[str, Any]) -> bool:
    """The stream found the batch wrong before it stored any of it, unlike when storing fails."""
    return bool(answer.get("error")) and answer["error"].get("code") == _BAD_REQUEST
