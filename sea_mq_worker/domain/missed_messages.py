"""Find messages that were never delivered to a consumer, as far as can be known."""

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
    """At least ``count`` messages between two sequences were never delivered, and will not be."""

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
    given = max(now.deliveries - (0 if anew else before.deliveries), 0)
    if now.last_seq < before.last_seq:  # the server lost the end of the stream
        gone = before.pending - given - now.pending
        return _found(max(before.delivered, now.last_seq), before.last_seq, gone)
    stored = now.last_seq - max(before.last_seq, before.delivered) if now.takes_all else 0
    last_gone = max(now.first_seq - 1, now.delivered if anew else 0)
    return _found(before.delivered, last_gone, before.pending + stored - given - now.pending)


def _found(delivered: int, last_gone: int, count: int) -> MissedMessages | None:
    count = min(count, last_gone - delivered)
    return MissedMessages(delivered + 1, last_gone, count) if count > 0 else None


@dataclass(slots=True)
class PassedMessages:
    """Progress of a search for messages that a consumer passed without a delivery.

    A server that lost part of a consumer's state, or a leader that lacks it, can take messages for
    acknowledged that nobody has handled. So after another server answers, the messages that were in the
    stream by then are compared with the inbox, as soon as the consumer has settled them.

    Attributes:
        of: the stream and the consumer, by their times of creation.
        server: who answers.
        settled: sequence up to which the consumer had settled all messages at the last look.
        compared: messages up to this sequence are recorded; ``settled`` of the look before, without a doubt.
        until: the last sequence in doubt; 0: none.
    """

    of: tuple[str, str]
    server: str
    settled: int
    compared: int
    until: int = 0

    def look(self, server: str, settled: int, last_seq: int) -> int:
        """Return the sequence up to which messages behind ``compared`` are to be compared."""
        if server != self.server:
            self.server, self.until = server, max(self.until, self.settled, settled, last_seq)
        if self.compared >= self.until:
            self.compared, self.until = self.settled, 0
        self.compared, self.settled = min(self.compared, settled, last_seq), settled
        return min(self.until, settled, last_seq)
