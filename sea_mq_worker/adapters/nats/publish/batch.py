"""Shared by the batched modes: the replies to one batch, and how many of its messages are stored."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.publish.acks import NOT_BATCHED, error_code, parse
from sea_mq_worker.adapters.nats.publish.pipelined import WINDOW_BYTES, WINDOW_MESSAGES, no_permission
from sea_mq_worker.domain.encoding import EncodedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """How much of a batch is stored.

    Attributes:
        sent: messages that may be stored.
        stored: messages, counted from the first, that are certainly stored; the others are possibly stored.
        stream: as the acknowledgement named it.
        last_seq: stream sequence of the last stored one.
        unbroken: the stored messages certainly have consecutive sequences.
        trouble: why the batch ended early; empty if all messages are stored.
        disabled: the stream no longer allows this kind of batch.
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
    """Collects the replies to one batch."""

    def __init__(self, messages: Sequence[EncodedMessage]) -> None:
        self.stopped = ""
        self._messages = messages
        self._answers: list[tuple[str, dict[str, Any]]] = []
        self._wake: asyncio.Future[None] | None = None

    def on_reply(self, token: str, msg: Msg) -> None:
        """Keep a reply; a status without a body means that no stream takes the subject."""
        if msg.headers and not msg.data:
            return self.stop("no stream takes the subject, or it has no leader now")
        self._answers.append((token, parse(msg.data)))
        return self._notify()

    def stop(self, reason: str) -> None:
        """Stop waiting: no more replies will come."""
        self.stopped = self.stopped or reason
        self._notify()

    def deny(self, subject: str) -> None:
        """Stop the batch if one of its subjects is forbidden."""
        if any(message.subject.lower() == subject for message in self._messages):
            self.stop(no_permission(subject))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the replies since the last call, without waiting."""
        taken, self._answers = self._answers, []
        return taken

    async def wait(self) -> None:
        """Wait for a reply or for the stop."""
        if not self._answers and not self.stopped:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def is_mode_disabled(answer: dict[str, Any]) -> bool:
    """Return whether a reply refuses this kind of batch altogether."""
    return bool(answer.get("error")) and error_code(answer["error"]) in NOT_BATCHED


def chunks(messages: Sequence[EncodedMessage]) -> Iterator[Sequence[EncodedMessage]]:
    """Split messages into batches that fit server and buffers; a repeated message is a batch of its own.

    The server refuses an atomic batch that holds one known id, and silently skips a known id in a fast batch.
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
