"""Fast ingest (server 2.14 and later): one acknowledgement for many messages, nothing stored behind a gap.

The reply subject carries position and operation, so messages are sent unchanged. The server silently ends a
batch after 10 s without a message, so each chunk is a batch of its own.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.errors import plain
from sea_mq_worker.adapters.nats.publish.acks import judge_ack, number
from sea_mq_worker.adapters.nats.publish.batch import BatchReplies, BatchResult, is_mode_disabled
from sea_mq_worker.adapters.nats.publish.hpub import TURN_MESSAGES, Sending, send_all
from sea_mq_worker.adapters.nats.publish.pipelined import CONNECTION_ERRORS, NOT_CONNECTED, wait_for_buffer
from sea_mq_worker.adapters.nats.publish.reply_mux import ReplyMux, stop_at
from sea_mq_worker.domain.encoding import EncodedMessage
from sea_mq_worker.domain.outcomes import Stored

_FLOW = 1000
"""Messages per acknowledgement, as requested. The server may grant fewer: with half of them, a whole chunk
still follows its first message without another wait."""
_OPENING = 8
"""Messages that open a batch without waiting for its first acknowledgement: a small batch is one write."""
_START, _APPEND, _COMMIT = 0, 1, 2
_FINAL_COUNT_SECONDS = 0.25
"""Wait after an error for the acknowledgement that reports how many messages are stored, if one comes."""
_TIMED_OUT = "the deadline passed before the batch was acknowledged"


class _Progress:
    """The state of a batch by the replies so far."""

    def __init__(self, stream: str, batch: str, batch_replies: BatchReplies) -> None:
        self._stream = stream
        self._batch = batch
        self._batch_replies = batch_replies
        self.acked = 0
        self.flow = 0
        self.trouble = ""
        self.disabled = False
        self.opened = False
        self.refused = False
        self.final: Stored | None = None
        self.count = 0

    @property
    def is_over(self) -> bool:
        return bool(self.final or self.trouble or self._batch_replies.stopped)

    def capacity(self, sent: int) -> int:
        """Return how many messages may follow: a few to open the batch, then two acknowledgements' worth."""
        return self.acked + 2 * self.flow - sent if sent else _OPENING

    def process_replies(self) -> None:
        for _, answer in self._batch_replies.take():
            self._process_reply(answer)

    def _process_reply(self, answer: dict[str, Any]) -> None:
        match answer.get("type"):
            case "ack":
                self.opened = True
                self.acked = max(self.acked, number(answer, "seq"))
                self.flow = number(answer, "msgs") or self.flow
            case "gap":
                self._record_failure("the server missed a message of the batch")
            case _ if answer.get("error"):
                self.disabled = self.disabled or is_mode_disabled(answer)
                self.refused = self.refused or not self.opened
                self._record_failure(str(answer["error"].get("description", "refused")))
            case _ if answer.get("batch") == self._batch:
                self._end(answer)
            case _:
                self._record_failure("the reply does not belong to the batch")

    def _end(self, answer: dict[str, Any]) -> None:
        outcome = judge_ack(answer, self._stream)
        if isinstance(outcome, Stored):
            self.final, self.count = outcome, number(answer, "count")
        else:
            self._batch_replies.stop(self.trouble or outcome.reason)

    def _record_failure(self, trouble: str) -> None:
        if not self.trouble:
            self.trouble = trouble
            asyncio.get_running_loop().call_later(_FINAL_COUNT_SECONDS, self._batch_replies.stop, trouble)


class FastIngestPublisher:
    """Sends chunks as fast-ingest batches that end at the first gap."""

    def __init__(self, connection: NatsConnection, replies: ReplyMux, stream: str) -> None:
        self._connection = connection
        self._replies = replies
        self._stream = stream

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> BatchResult:
        """Send one batch of two or more messages."""
        batch_replies = BatchReplies(messages)
        prefix = self._replies.open(batch_replies)
        timer = stop_at(deadline, batch_replies, _TIMED_OUT)
        batch = uuid.uuid4().hex
        progress = _Progress(self._stream, batch, batch_replies)
        sendings = _sendings(messages, f"{prefix}{batch}.{_FLOW}.fail")
        sent = 0
        try:
            while sent < len(messages) and (room := await self._wait_for_room(sent, progress, batch_replies)):
                run = sendings[sent : sent + room]
                sent += len(run)
                await send_all(self._connection.client, run)
            while progress.final is None and not batch_replies.stopped and self._connection.is_connected:
                await batch_replies.wait()
                progress.process_replies()
        except CONNECTION_ERRORS as error:
            batch_replies.stop(plain(error))
        finally:
            timer.cancel()
            self._replies.close(prefix)
        return _result(sent, len(messages), progress, batch_replies.stopped)

    async def _wait_for_room(self, sent: int, progress: _Progress, batch_replies: BatchReplies) -> int:
        """Wait until more messages may follow; return their number, 0 once the batch is over."""
        await wait_for_buffer(self._connection, batch_replies)
        progress.process_replies()
        while not progress.is_over and progress.capacity(sent) <= 0:
            await batch_replies.wait()
            progress.process_replies()
        may_continue = not progress.is_over and self._connection.is_connected
        return min(progress.capacity(sent), TURN_MESSAGES) if may_continue else 0


def _sendings(messages: Sequence[EncodedMessage], stem: str) -> list[Sending]:
    operations = [_START, *[_APPEND] * (len(messages) - 2), _COMMIT]
    return [
        (message, f"{stem}.{number}.{operation}.$FI")
        for number, (message, operation) in enumerate(zip(messages, operations, strict=True), start=1)
    ]


def _result(sent: int, wanted: int, progress: _Progress, stopped: str) -> BatchResult:
    """Rely on the final acknowledgement alone, because only that names the stream.

    The final acknowledgement ends the batch: a message outside its count is not stored, even if it was sent.
    If the first message was refused, no batch is open, and the server refuses the other messages too.
    """
    final = progress.final
    stored = min(progress.count, sent) if final else 0
    possibly_stored = 1 if progress.refused else sent
    return BatchResult(
        sent=stored if final else possibly_stored,
        stored=stored,
        stream=final.stream if final else "",
        last_seq=final.seq if final else 0,
        trouble="" if stored == wanted else progress.trouble or stopped or NOT_CONNECTED,
        disabled=progress.disabled,
    )
