"""Fast ingest (server 2.14 and later): one acknowledgement for many messages, nothing stored behind a gap.

The reply subject carries position and operation, so messages are sent unchanged. The server silently ends a
batch after 10 s without a message, so each chunk is a batch of its own.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.publish.acks import judge_ack, number
from sea_mq_worker.adapters.nats.publish.batch import BatchResult, SentBatch, is_mode_disabled
from sea_mq_worker.adapters.nats.publish.hpub import TURN_MESSAGES, frame, wait_for_buffer
from sea_mq_worker.adapters.nats.publish.reply_mux import NOT_CONNECTED, ReplyMux
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


class _FastBatch(SentBatch):
    """The state of a batch by the replies so far."""

    def __init__(self, stream: str, domain: str, messages: Sequence[EncodedMessage]) -> None:
        super().__init__(messages)
        self.id = uuid.uuid4().hex
        self._stream = stream
        self._domain = domain
        self._acked = 0
        self._flow = 0
        self._opened = False
        self._refused = False
        self._disabled = False
        self._trouble = ""
        self.final: Stored | None = None
        self._count = 0

    @property
    def is_over(self) -> bool:
        return bool(self.final or self._trouble or self.stopped)

    def capacity(self, sent: int) -> int:
        """Return how many messages may follow: a few to open the batch, then two acknowledgements' worth."""
        return self._acked + 2 * self._flow - sent if sent else _OPENING

    def read(self, answer: dict[str, Any]) -> None:
        match answer.get("type"):
            case "ack":
                self._opened = True
                self._acked = max(self._acked, number(answer, "seq"))
                self._flow = number(answer, "msgs") or self._flow
            case "gap":
                self._record_failure("the server missed a message of the batch")
            case _ if answer.get("error"):
                self._disabled = self._disabled or is_mode_disabled(answer)
                self._refused = self._refused or not self._opened
                self._record_failure(str(answer["error"].get("description", "refused")))
            case _ if answer.get("batch") == self.id:
                self._end(answer)
            case _:
                self._record_failure("the reply does not belong to the batch")

    def result(self, sent: int) -> BatchResult:
        """Rely on the final acknowledgement alone, because only that names the stream.

        The final acknowledgement ends the batch: a message outside its count is not stored, even if it was
        sent. If the first message was refused, no batch is open, and the server refuses the others too.
        """
        final = self.final
        stored = min(self._count, sent) if final else 0
        possibly_stored = 1 if self._refused else sent
        is_whole = stored == len(self._messages)
        return BatchResult(
            sent=stored if final else possibly_stored,
            stored=stored,
            stream=final.stream if final else "",
            last_seq=final.seq if final else 0,
            trouble="" if is_whole else self._trouble or self.stopped or NOT_CONNECTED,
            disabled=self._disabled,
        )

    def _end(self, answer: dict[str, Any]) -> None:
        outcome = judge_ack(answer, self._stream, self._domain)
        if isinstance(outcome, Stored):
            self.final, self._count = outcome, number(answer, "count")
        else:
            self.stop(self._trouble or outcome.reason)

    def _record_failure(self, trouble: str) -> None:
        if not self._trouble:
            self._trouble = trouble
            asyncio.get_running_loop().call_later(_FINAL_COUNT_SECONDS, self.stop, trouble)


class FastIngestPublisher:
    """Sends chunks as fast-ingest batches that end at the first gap."""

    def __init__(self, connection: NatsConnection, replies: ReplyMux, stream: str) -> None:
        self._connection = connection
        self._replies = replies
        self._stream = stream

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> BatchResult:
        """Send one batch of two or more messages."""
        batch = _FastBatch(self._stream, self._connection.domain, messages)
        sent = 0
        with self._replies.replies_to(batch, deadline) as prefix:
            replies = _reply_subjects(f"{prefix}{batch.id}.{_FLOW}.fail", len(messages))
            while sent < len(messages) and (room := await self._wait_for_room(sent, batch)):
                run = slice(sent, sent + room)
                frames = list(map(frame, messages[run], replies[run]))
                sent += len(frames)
                await self._connection.client.write(frames)
            while batch.final is None and not batch.stopped and self._connection.is_connected:
                await batch.change()
        return batch.result(sent)

    async def _wait_for_room(self, sent: int, batch: _FastBatch) -> int:
        """Wait until more messages may follow; return their number, 0 once the batch is over."""
        await wait_for_buffer(self._connection, batch)
        while not batch.is_over and batch.capacity(sent) <= 0:
            await batch.change()
        may_continue = not batch.is_over and self._connection.is_connected
        return min(batch.capacity(sent), TURN_MESSAGES) if may_continue else 0


def _reply_subjects(stem: str, count: int) -> list[str]:
    operations = [_START, *[_APPEND] * (count - 2), _COMMIT]
    return [f"{stem}.{place}.{operation}.$FI" for place, operation in enumerate(operations, start=1)]
