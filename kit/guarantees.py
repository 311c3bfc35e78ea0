"""The guarantees that the kit tests."""

from enum import StrEnum


class Guarantee(StrEnum):
    """Names of the guarantees in descriptions."""

    NO_LOSS = "no-loss"
    NO_GIVING_UP = "no-giving-up"
    RECOVERS = "recovers"
    NO_PHANTOMS = "no-phantoms"
    ONCE = "once"
    ONCE_LATE = "once-late"
    SHARED = "shared"
    ORDER = "order"
    UNALTERED = "unaltered"
    POISON = "poison"
    STOPS = "stops"


TEXTS = {
    Guarantee.NO_LOSS: "each committed event that is marked as sent is in the stream",
    Guarantee.NO_GIVING_UP: "no outage makes the relay give up an event",
    Guarantee.RECOVERS: "the relay continues by itself after every fault",
    Guarantee.NO_PHANTOMS: "no event that was rolled back is sent",
    Guarantee.ONCE: "each event is in the stream once",
    Guarantee.ONCE_LATE: "the same, after an outage longer than the deduplication window",
    Guarantee.SHARED: "two instances send each event once",
    Guarantee.ORDER: "events of a key are in the order of their commits",
    Guarantee.UNALTERED: "the body equals the committed one",
    Guarantee.POISON: "an event that cannot be sent harms no other",
    Guarantee.STOPS: "SIGTERM ends the relay in order and in time",
}
