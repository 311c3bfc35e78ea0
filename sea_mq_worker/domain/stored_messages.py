"""A message stored in a stream, its state for each consumer, and the backlog of a consumer."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple


class DeliveryState(StrEnum):
    """State of a message for a consumer."""

    TO_COME = "TO_COME"
    """The consumer has not delivered the message yet."""
    DELIVERED = "DELIVERED"
    """The consumer has delivered it; the server does not report whether it or an earlier one is pending."""
    DONE = "DONE"
    """The message is acknowledged, or the consumer was created to start after it."""
    NOT_FOR_IT = "NOT_FOR_IT"
    """The consumer's filter excludes the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDelivery:
    """State for one consumer; ``before``: cap on messages delivered before this one, if it is TO_COME."""

    consumer: str
    reading: DeliveryState
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message stored in a stream, without its content."""

    stream: str
    seq: int
    subject: str
    stored_at: datetime
    consumers: tuple[ConsumerDelivery, ...] = ()


class PublishedRow(NamedTuple):
    """The id, place and time that a PUBLISHED row has of its message."""

    id: str
    seq: int
    published_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """A consumer's backlog, for operators.

    Attributes:
        pending: messages still to deliver for the first time.
        delivered_seq: sequence up to which the consumer has delivered.
        ack_pending: delivered and unacknowledged messages.
        redelivered: those of ``ack_pending`` that were delivered more than once.
        paused_seconds: time left of a pause; 0 if the consumer is not paused.
        oldest_seconds: age of the oldest message of ``pending``; None: none, or the stream cannot be read.
        oldest_id: ID under which the inbox records that message.
    """

    stream: str
    durable: str
    pending: int
    ack_pending: int
    ack_pending_max: int
    redelivered: int
    paused_seconds: float
    delivered_seq: int
    oldest_seconds: float | None = None
    oldest_id: str = ""

    def without(self, ahead: int, *, oldest: bool) -> "ConsumerState":
        """Count no message twice: the inbox counts the ``ahead`` that it has behind ``delivered_seq``.

        ``oldest``: the inbox has the oldest, so that the worker reads ahead and it does not wait.
        """
        pending = max(0, self.pending - ahead)
        oldest_seconds = None if oldest or not pending else self.oldest_seconds
        return replace(self, pending=pending, oldest_seconds=oldest_seconds)
