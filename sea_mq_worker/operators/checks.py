"""Rows that the worker's periodic checks read and write; all raise what ``translated`` raises."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime

import asyncpg

from sea_mq_worker.operators.records import ConsumerStanding, PublishedRow
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries

# --- Conflicts between two handlers that would share one inbox.

_ONE, _REST = "*", ">"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledDurable:
    """A durable and the handler that gets its messages; ``subjects`` are its filters, wildcards included."""

    stream: str
    durable: str
    handler: str
    subjects: tuple[str, ...]


def conflicts(
    own: Sequence[HandledDurable], others: Sequence[HandledDurable]
) -> Iterator[tuple[HandledDurable, HandledDurable]]:
    """Find subjects that are consumed twice, by different durables for different handlers.

    With one inbox, each message reaches only one of the two handlers. A durable that this worker consumes too
    is no conflict: its handler is being changed.
    """
    durables = {(one.stream, one.durable) for one in own}
    for one in own:
        for other in others:
            if other.handler == one.handler or (other.stream, other.durable) in durables:
                continue
            if one.stream == other.stream and any(
                overlap(mine, theirs) for mine in one.subjects for theirs in other.subjects
            ):
                yield one, other


def overlap(one: str, other: str) -> bool:
    """Return whether some subject matches both patterns: ``*`` is one token, a last ``>`` one or more."""
    ours, theirs = one.split("."), other.split(".")
    for place in range(max(len(ours), len(theirs))):
        if place >= len(ours) or place >= len(theirs):
            return False
        pair = {ours[place], theirs[place]}
        if _REST in pair:
            return True
        if len(pair) > 1 and _ONE not in pair:
            return False
    return True


# --- Find messages that were never delivered to a consumer, as far as can be known.


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


_PAGES = 200
_SOME = 3
_SEEN_SECONDS = 150.0
"""A worker that has not repeated its record for this time has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Stream sequences of the PUBLISHED rows that were read.

    Attributes:
        greatest: the greatest sequence in a row; 0: there is none.
        shared: number of rows whose sequence is also in another row.
        some: a few rows.
    """

    greatest: int = 0
    shared: int = 0
    some: Sequence[PublishedRow] = ()


async def acknowledged(pool: asyncpg.Pool, stream: str) -> Acknowledged:
    """Read the latest rows and some others."""
    sql = load_queries("checks")["acknowledged"]
    [row] = await fetch(pool, sql, stream, _PAGES, _SOME)
    some = tuple(
        PublishedRow(event_id, int(seq), datetime.fromtimestamp(float(at), UTC))
        for event_id, seq, at in (one.split() for one in row["some"])
    )
    return Acknowledged(greatest=row["greatest"] or 0, shared=row["shared"], some=some)


class PostgresStandings:
    """Keeps the last check of each consumer over restarts; only one of several workers reports a finding."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = load_queries("checks")

    async def last(self, stream: str, durable: str) -> ConsumerStanding | None:
        """Return a consumer's progress at the last check, or None before the first check."""
        rows = await fetch(self._pool, self._sql["standing"], stream, durable)
        return ConsumerStanding(**json.loads(rows[0]["standing"])) if rows else None

    async def replace(
        self,
        stream: str,
        durable: str,
        *,
        last: ConsumerStanding | None,
        now: ConsumerStanding,
        found: MissedMessages | None,
    ) -> bool:
        """Replace the last check; False: another worker has already done so."""
        first_seq, last_seq, count = astuple(found) if found else (None, None, 0)
        rows = await fetch(
            self._pool,
            self._sql["replace"],
            *(stream, durable, json.dumps(asdict(last)) if last else None, json.dumps(asdict(now))),
            *(count, first_seq, last_seq),
        )
        return bool(rows)

    async def recorded(self, ids: Sequence[str]) -> set[str]:
        """Return those of the message ids that the inbox has."""
        return {row["message_id"] for row in await fetch(self._pool, self._sql["recorded"], ids)}

    async def missed(self) -> Sequence[RecordedMissed]:
        """Return the missed messages that no operator has acknowledged."""
        return [RecordedMissed(**row) for row in await fetch(self._pool, self._sql["missed"])]


class PostgresHandledDurables:
    """Records which durables are consumed with these tables, and for which handlers."""

    def __init__(self, *, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._sql = load_queries("checks")

    async def others(self, handler: str) -> Sequence[HandledDurable]:
        """Return the durables that workers with another handler have consumed lately."""
        rows = await fetch(self._pool, self._sql["others"], handler, _SEEN_SECONDS)
        return [HandledDurable(**dict(row) | {"subjects": tuple(row["subjects"])}) for row in rows]

    async def record(self, own: Sequence[HandledDurable]) -> None:
        """Record durables for the next ``_SEEN_SECONDS``."""
        for one in own:
            await fetch(
                self._pool, self._sql["record"], one.stream, one.durable, one.handler, list(one.subjects)
            )

    async def remove(self, own: Sequence[HandledDurable]) -> None:
        """Remove the records; another worker that consumes the same durables soon writes them again."""
        consumed = zip(*((one.stream, one.durable, one.handler) for one in own), strict=True)
        await fetch(self._pool, self._sql["remove"], *consumed)
