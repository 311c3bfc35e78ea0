"""Find messages that left their stream before their delivery to a consumer, as far as can be known."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStanding:
    """Progress of a consumer in its stream, as the server reports it.

    Attributes:
        delivered: sequence of the last delivered message, or the one to which a purge moved the consumer.
        deliveries: number of deliveries, including repeats.
        pending: number of messages still to be delivered.
        takes_all: the filters match every subject of the stream, so every stored message is for the consumer.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMissed:
    """All missed messages of a consumer; the range is that of the last detection, ``seconds`` ago."""

    stream: str
    durable: str
    first_seq: int
    last_seq: int
    count: int
    seconds: float


def find_missed(before: ConsumerStanding | None, now: ConsumerStanding) -> MissedMessages | None:
    """Compare two states of a consumer; None: no message is known to be missed.

    Each message that was pending (and, for a consumer that takes all, each message stored since) was
    delivered since, is still pending, or is gone. Repeated deliveries make the count too low, never too
    high. In a stream that replaces messages, a missing message may have been replaced.
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
