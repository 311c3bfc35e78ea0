"""Fast ingest (server 2.14 and later): one acknowledgement for many messages, nothing stored behind a gap.

Position and operation travel in the reply subject, so messages stay as they are. A batch that is silent
for 10 s ends without notice: one batch a chunk, never a standing one.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.errors import plain
from sea_mq_worker.adapters.nats.publish.acks import judge_ack, number
from sea_mq_worker.adapters.nats.publish.batch import BatchReplies, BatchResult, says_disabled
from sea_mq_worker.adapters.nats.publish.hpub import TURN_MESSAGES, Sending, send_all
from sea_mq_worker.adapters.nats.publish.pipelined import BROKEN, NOT_CONNECTED, wait_for_buffer
from sea_mq_worker.adapters.nats.publish.reply_mux import ReplyMux, stop_at
from sea_mq_worker.domain.encoding import EncodedMessage
from sea_mq_worker.domain.outcomes import Stored

_FLOW = 1000
"""Messages that are to share an acknowledgement. The server may grant fewer: half are enough for a chunk to
go at once behind its first message."""
_START, _APPEND, _COMMIT = 0, 1, 2
_LAST_WORD_SECONDS = 0.25
"""After an error the server still says how much it stored, if it does at all."""
_TIMED_OUT = "the deadline passed before the batch was acknowledged"


class _Progress:
    """What the answers have told so far."""

    def __init__(self, stream: str, batch: str, talk: BatchReplies) -> None:
        self._stream = stream
        self._batch = batch
        self._talk = talk
        self.acked = 0
        self.flow = 0
        self.trouble = ""
        self.disabled = False
        self.final: Stored | None = None
        self.count = 0

    @property
    def over(self) -> bool:
        return bool(self.final or self.trouble or self._talk.stopped)

    def room(self, sent: int) -> int:
        """The first message opens the batch; the others keep within two acknowledgements."""
        return self.acked + 2 * self.flow - sent if sent else 1

    def absorb(self) -> None:
        for _, answer in self._talk.take():
            self._take(answer)

    def _take(self, answer: dict[str, Any]) -> None:
        match answer.get("type"):
            case "ack":
                self.acked = max(self.acked, number(answer, "seq"))
                self.flow = number(answer, "msgs") or self.flow
            case "gap":
                self._stumble("the server missed a message of the batch")
            case _ if answer.get("error"):
                self.disabled = self.disabled or says_disabled(answer)
                self._stumble(str(answer["error"].get("description", "refused")))
            case _ if answer.get("batch") == self._batch:
                self._end(answer)
            case _:
                self._stumble("the answer was none to a batch")

    def _end(self, answer: dict[str, Any]) -> None:
        outcome = judge_ack(answer, self._stream)
        if isinstance(outcome, Stored):
            self.final, self.count = outcome, number(answer, "count")
        else:
            self._talk.stop(self.trouble or outcome.reason)

    def _stumble(self, trouble: str) -> None:
        if not self.trouble:
            self.trouble = trouble
            asyncio.get_running_loop().call_later(_LAST_WORD_SECONDS, self._talk.stop, trouble)


class FastIngestPublisher:
    """Sends chunks as fast-ingest batches that end at the first gap."""

    def __init__(self, connection: NatsConnection, replies: ReplyMux, stream: str) -> None:
        self._connection = connection
        self._replies = replies
        self._stream = stream

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> BatchResult:
        """Send one batch of two or more messages."""
        talk = BatchReplies(messages)
        prefix = self._replies.open(talk)
        timer = stop_at(deadline, talk, _TIMED_OUT)
        batch = uuid.uuid4().hex
        progress = _Progress(self._stream, batch, talk)
        sendings = _sendings(messages, f"{prefix}{batch}.{_FLOW}.fail")
        sent = 0
        try:
            while sent < len(messages) and (room := await self._room(sent, progress, talk)):
                run = sendings[sent : sent + room]
                sent += len(run)
                await send_all(self._connection.client, run)
            while progress.final is None and not talk.stopped and self._connection.is_connected:
                await talk.wait()
                progress.absorb()
        except BROKEN as error:
            talk.stop(plain(error))
        finally:
            timer.cancel()
            self._replies.close(prefix)
        return _result(sent, len(messages), progress, talk.stopped)

    async def _room(self, sent: int, progress: _Progress, talk: BatchReplies) -> int:
        """Wait until the batch may go on; return how many messages may follow, 0 where it is over."""
        await wait_for_buffer(self._connection, talk)
        progress.absorb()
        while not progress.over and progress.room(sent) <= 0:
            await talk.wait()
            progress.absorb()
        goes_on = not progress.over and self._connection.is_connected
        return min(progress.room(sent), TURN_MESSAGES) if goes_on else 0


def _sendings(messages: Sequence[EncodedMessage], stem: str) -> list[Sending]:
    operations = [_START, *[_APPEND] * (len(messages) - 2), _COMMIT]
    return [
        (message, f"{stem}.{number}.{operation}.$FI")
        for number, (message, operation) in enumerate(zip(messages, operations, strict=True), start=1)
    ]


def _result(sent: int, wanted: int, progress: _Progress, stopped: str) -> BatchResult:
    """Only the final acknowledgement names the stream, so it alone is believed.

    It ends the batch: what it does not count is not stored, whatever was sent.
    """
    final = progress.final
    stored = min(progress.count, sent) if final else 0
    return BatchResult(
        sent=stored if final else sent,
        stored=stored,
        stream=final.stream if final else "",
        last_seq=final.seq if final else 0,
        trouble="" if stored == wanted else progress.trouble or stopped or NOT_CONNECTED,
        disabled=progress.disabled,
    )
