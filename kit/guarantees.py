"""What is asked of a relay."""

from enum import StrEnum


class Guarantee(StrEnum):
    """By the name that a description uses."""

    NO_LOSS = "no-loss"
    NO_GIVING_UP = "no-giving-up"
    GOES_ON = "goes-on"
    NO_PHANTOMS = "no-phantoms"
    ONCE = "once"
    ONCE_LATE = "once-late"
    SHARED = "shared"
    ORDER = "order"
    UNALTERED = "unaltered"
    POISON = "poison"
    STOPS = "stops"


TEXTS = {
    Guarantee.NO_LOSS: "no committed event is called sent that is not in the stream",
    Guarantee.NO_GIVING_UP: "no outage makes it give up an event",
    Guarantee.GOES_ON: "it goes on by itself after every fault",
    Guarantee.NO_PHANTOMS: "nothing that was rolled back is sent",
    Guarantee.ONCE: "each event is in the stream once",
    Guarantee.ONCE_LATE: "the same, after it was down for longer than the duplicate window",
    Guarantee.SHARED: "two at once send each event once",
    Guarantee.ORDER: "events of a key are in the order of their commits",
    Guarantee.UNALTERED: "the body says what was committed",
    Guarantee.POISON: "an event that cannot be sent harms no other",
    Guarantee.STOPS: "SIGTERM ends it in order and in time",
}
