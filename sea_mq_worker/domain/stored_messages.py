"""A message as its stream has it, and how far each consumer is with it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class DeliveryState(StrEnum):
    """How far a consumer is with a message."""

    TO_COME = "TO_COME"
    """It has not delivered it yet."""
    DELIVERED = "DELIVERED"
    """It has delivered it; the server does not say whether this one or one before it waits for its end."""
    DONE = "DONE"
    """It has acknowledged it, or was made to begin behind it."""
    NOT_FOR_IT = "NOT_FOR_IT"
    """Its filter leaves the message out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDelivery:
    """A consumer of the stream; ``before`` bounds the messages that it delivers before a message to come."""

    consumer: str
    reading: DeliveryState
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as its stream has it, without its content."""

    stream: str
    seq: int
    subject: str
    stored_at: datetime
    readers: tuple[ConsumerDelivery, ...] = ()
