"""What the batched modes share: a conversation whose answers tell how much of a batch is stored."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.publish.acks import NOT_BATCHED, error_code, parse
from sea_mq_worker.adapters.nats.publish.pipelined import WINDOW_BYTES, WINDOW_MESSAGES, forbidden
from sea_mq_worker.domain.encoding import EncodedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """How far a batch came.

    Attributes:
        sent: messages that may be stored.
        stored: messages from the first on that are stored for certain; the rest is in doubt.
        stream: as the acknowledgement named it.
        last_seq: stream sequence of the last stored one.
        unbroken: the stored ones have consecutive sequences for certain.
        trouble: why it ended early; empty where all are stored.
        disabled: the stream does not take such batches any more.
    """

    sent: int
    stored: int = 0
    stream: str = ""
    last_seq: int = 0
    unbroken: bool = False
    trouble: str = ""
    disabled: bool = False


class BatchSender(Protocol):
    """Sends messages as one batch that keeps its order."""

    async def send(self, messages: Sequence[EncodedMessage], deadline: float) -> BatchResult:
        """Send up to a chunk of messages; ``deadline`` is in the loop's time."""
        ...


class BatchReplies:
    """The answers to one batch, taken one by one."""

    def __init__(self, messages: Sequence[EncodedMessage]) -> None:
        self.stopped = ""
        self._messages = messages
        self._answers: list[tuple[str, dict[str, Any]]] = []
        self._wake: asyncio.Future[None] | None = None

    def answered(self, token: str, msg: Msg) -> None:
        """Keep an answer; a status without a body says that nobody takes the subject."""
        if msg.headers and not msg.data:
            return self.stop("no stream takes the subject, or it has no leader now")
        self._answers.append((token, parse(msg.data)))
        return self._notify()

    def stop(self, reason: str) -> None:
        """No more answers will come."""
        self.stopped = self.stopped or reason
        self._notify()

    def deny(self, subject: str) -> None:
        """A forbidden subject ends the batch."""
        if any(message.subject.lower() == subject for message in self._messages):
            self.stop(forbidden(subject))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the answers that came since the last call, without waiting."""
        taken, self._answers = self._answers, []
        return taken

    async def wait(self) -> None:
        """Wait for an answer or the end."""
        if not self._answers and not self.stopped:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def says_disabled(answer: dict[str, Any]) -> bool:
    """Tell whether an answer refuses the kind of batch as such."""
    return bool(answer.get("error")) and error_code(answer["error"]) in NOT_BATCHED


def chunks(messages: Sequence[EncodedMessage]) -> Iterator[Sequence[EncodedMessage]]:
    """Split messages into batches that server and buffers can take; a repeated one goes alone.

    The server refuses an atomic batch for one known id, and skips a known id in a fast one without notice.
    """
    start, size = 0, 0
    for index, message in enumerate(messages):
        full = index - start == WINDOW_MESSAGES or size + message.size > WINDOW_BYTES
        if index > start and (full or message.repeated or messages[index - 1].repeated):
            yield messages[start:index]
            start, size = index, 0
        size += message.size
    if start < len(messages):
        yield messages[start:]
