"""Shared by the batched modes: the replies to one batch, and how many of its messages are stored."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.publish.acks import NO_STREAM, NOT_BATCHED, number, parse
from sea_mq_worker.adapters.nats.publish.reply_mux import PendingRequest, no_permission
from sea_mq_worker.domain.encoding import EncodedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Number of messages of a batch that are stored.

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


class SentBatch(PendingRequest):
    """A batch in flight; its replies report how much of the batch is stored."""

    def __init__(self, messages: Sequence[EncodedMessage]) -> None:
        super().__init__()
        self._messages = messages

    @abstractmethod
    def read(self, answer: dict[str, Any]) -> None:
        """Note what a reply says."""

    def on_reply(self, token: str, msg: Msg) -> None:  # noqa: ARG002 - the reply itself has its position
        """Read a reply; a status without a body means that no stream takes the subject."""
        if msg.headers and not msg.data:
            self.stop(NO_STREAM)
        else:
            self.read(parse(msg.data))
            self.notify()

    def deny(self, subject: str) -> None:
        """Stop the batch if one of its subjects is forbidden."""
        if any(message.subject.lower() == subject for message in self._messages):
            self.stop(no_permission(subject))


def is_mode_disabled(answer: dict[str, Any]) -> bool:
    """Return whether a reply refuses this kind of batch altogether."""
    return bool(answer.get("error")) and number(answer["error"], "err_code") in NOT_BATCHED
