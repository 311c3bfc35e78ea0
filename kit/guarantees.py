"""The guarantees that the kit tests."""

from enum import StrEnum
from typing import Self


class Guarantee(StrEnum):
    """Names of the guarantees in descriptions, each with the promise itself."""

    promise: str

    def __new__(cls, name: str, promise: str) -> Self:
        made = str.__new__(cls, name)
        made._value_ = name
        made.promise = promise
        return made

    NO_LOSS = "no-loss", "each committed event that is marked as sent is in the stream"
    NO_GIVING_UP = "no-giving-up", "no outage makes the relay give up an event"
    RECOVERS = "recovers", "the relay continues by itself after every fault"
    NO_PHANTOMS = "no-phantoms", "no event that was rolled back is sent"
    ONCE = "once", "each event is in the stream once"
    ONCE_LATE = "once-late", "the same, after an outage longer than the deduplication window"
    SHARED = "shared", "two instances send each event once"
    ORDER = "order", "events of a key are in the order of their commits"
    UNALTERED = "unaltered", "the body equals the committed one"
    POISON = "poison", "an event that cannot be sent harms no other"
    STOPS = "stops", "SIGTERM ends the relay in order and in time"
