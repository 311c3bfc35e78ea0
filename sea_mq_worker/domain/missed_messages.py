"""Which messages left their stream before a consumer was given them, as far as that can be known."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStanding:
    """How far a consumer is with its stream, in the server's words.

    Attributes:
        delivered: the stream sequence up to which it was given messages, or was moved on by a purge.
        deliveries: how many it was given, repeats included.
        pending: messages that it has still to be given.
        takes_all: its filters leave nothing of the stream out, so that what is stored is for it.
        replaces: the stream drops older messages of a subject for newer ones.
    """

    stream_created: str
    consumer_created: str
    first_seq: int
    last_seq: int
    delivered: int
    deliveries: int
    pending: int
    takes_all: bool
    replaces: bool


@dataclass(frozen=True, slots=True)
class MissedMessages:
    """At least ``count`` messages between two sequences left the stream and were never delivered."""

    first_seq: int
    last_seq: int
    count: int


def find_missed(before: ConsumerStanding | None, now: ConsumerStanding) -> MissedMessages | None:
    """Compare two looks at a consumer; None: nothing is known to be missed.

    Each message that was pending (and, for a consumer that takes all, each that was stored since) was
    delivered since, is still pending, or is gone. Repeated deliveries make the count too low, never too
    high. Where the stream replaces messages, one that is gone may be replaced.
    """
    if now.replaces:
        return None
    if before is None:
        gone = now.first_seq - 1 - now.delivered
        return _found(now.delivered, now.first_seq - 1, gone if now.takes_all else 0)
    if before.stream_created != now.stream_created:
        return _found(before.delivered, before.last_seq, before.pending)
    anew = before.consumer_created != now.consumer_created
    given = now.deliveries - (0 if anew else before.deliveries)
    stored = now.last_seq - before.last_seq if now.takes_all else 0
    return _found(before.delivered, now.first_seq - 1, before.pending + stored - given - now.pending)


def _found(delivered: int, last_gone: int, count: int) -> MissedMessages | None:
    count = min(count, last_gone - delivered)
    return MissedMessages(delivered + 1, last_gone, count) if count > 0 else None
