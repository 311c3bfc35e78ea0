"""Judge each ID at each hop: outbox to stream, and stream to the inbox of each consumer.

A task judges all rows of its IDs at once; see ``Rows``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo
from sea_mq_worker.pipeline.jobs.reconcile.audit import Audit, explained, is_in, micros, micros_of
from sea_mq_worker.pipeline.jobs.reconcile.exchange import PACKED, Batches, Column, pack, unpack
from sea_mq_worker.pipeline.jobs.reconcile.fingerprints import EVENTS
from sea_mq_worker.pipeline.jobs.reconcile.result import ReconcileRequest, Verdict
from sea_mq_worker.pipeline.jobs.reconcile.rows import Rows, at, flags, numbers

_CLOCK = 60e6
"""Tolerance between the clocks of database and broker, where times of both are compared."""

_LATENCY_BITS = -(1 << 42)
"""Mask of a latency's float: it keeps ten bits of the fraction, so that few values remain to be counted."""

_OF_EVENT = ("id", "seq", "in_table", "published_at", "stream", "stream_seq")
_OF_REPLAYS = ("ordering_key", "event_type", "correlation_id", "created_at")
TROUBLE = pa.schema(
    [
        *[("hop", pa.int32()), ("findings", pa.int32()), ("seconds", pa.float64())],
        *[EVENTS.field(name) for name in _OF_EVENT],
    ]
)
"""An ID with another verdict than delivered at a hop: the hop's number, and the findings as bits."""

FOUND = pa.unify_schemas([TROUBLE, PACKED, pa.schema([("counted", pa.string())])])
"""A row is an ID with a finding; or ``rows`` of what is ``counted``: rows read from a ``source``, IDs of a
hop, or their latency in ``seconds``; or packed events with copies, by their ordering keys."""


class _Hop(NamedTuple):
    """Findings on each ID as bits, and its seconds; NaN: it did not pass the hop."""

    is_judged: Column
    findings: Column
    seconds: Column


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges the rows of IDs, of which it has all; for ``mapInArrow``.

    Attributes:
        context: this service's context.
        consumers: the consumers' progress just before the inbox was read.
        received_at: the database's time when the inbox was read.
        streams: streams by name, this service's first: bounds before the read, but the first message and the
            clock after it. Older messages of the lake have negative positions.
        audit: operators' actions.
        buckets: number of buckets for ordering keys.
    """

    wanted: ReconcileRequest
    context: str
    consumers: Sequence[ConsumerInfo]
    received_at: datetime
    streams: Mapping[str, StreamInfo]
    audit: Audit
    buckets: int

    @property
    def own(self) -> StreamInfo:
        """This service's stream."""
        return next(iter(self.streams.values()))

    @property
    def hops(self) -> list[str]:
        """Source and target of each hop, the hop from the outbox first."""
        received = (f"{one.stream} -> {self.context} {one.name}" for one in self.consumers)
        return [f"outbox -> {self.own.name}", *received]

    def __call__(self, batches: Batches) -> Batches:
        """Yield rows with the schema ``FOUND``."""
        tables = unpack(batches)
        rows = Rows(tables, self.own.name, since=self.wanted.since, until=self.wanted.until)
        found = [
            pa.table({"counted": ["rows"], "source": [name], "rows": [len(table)]})
            for name, table in tables.items()
        ]
        first = rows.first_own
        is_keyed = (first >= 0) & flags(rows.event["ordering_key"].is_valid())
        for number, hop in enumerate(self._hops(rows)):
            found += _counted(number, hop)
            is_bad = hop.is_judged & (hop.findings != 0)
            if number == 0:
                keyed = _trouble(rows, number, hop, is_keyed, _OF_REPLAYS)
                for name in ("position", "time"):
                    keyed = keyed.append_column(name, rows.copies[name].take(pa.array(first[is_keyed])))
                found.append(pa.Table.from_batches([pack("keys", keyed, "ordering_key", self.buckets)]))
                is_bad &= ~is_keyed
            found.append(_trouble(rows, number, hop, is_bad))
        together = pa.concat_tables(found, promote_options="permissive")
        yield from together.select(FOUND.names).cast(FOUND).to_batches()

    def _hops(self, rows: Rows) -> Iterator[_Hop]:
        verdict, event = self._outbox_verdict(rows), rows.event
        seconds = (at(rows.time, rows.first_own) - micros(event["occurred_at"])) / 1e6
        differs = [rows.differs(name, event[name]) for name in ("content", "header_hash")]
        is_altered = rows.any(rows.is_own & np.any(differs, axis=0))
        findings = verdict | self._is_duplicated(rows) * Verdict.DUPLICATED.bit
        is_there = rows.is_known | (rows.first_own >= 0)
        yield self._hop(rows.is_judged & is_there, findings, is_altered, seconds)
        for consumer in self.consumers:
            yield self._inbox_hop(rows, consumer)

    def _inbox_hop(self, rows: Rows, consumer: ConsumerInfo) -> _Hop:
        received = rows.received
        covered = _covers(consumer, rows.copies["subject"], rows.seq, rows.time)
        covered &= rows.is_in(consumer.stream)
        copy = rows.first(covered)
        is_judged = (copy >= 0) & (rows.is_judged | (consumer.stream != self.own.name))
        findings = self._inbox_verdict(rows, consumer, copy)
        taken = rows.first(covered & (rows.seq == numbers(received["stream_seq"])[rows.who]))
        seconds = (micros(received["processed_at"]) - at(rows.time, np.where(taken < 0, copy, taken))) / 1e6
        is_other = rows.differs("content", received["content_hash"])
        is_altered = rows.any(covered & is_other) & ~rows.any(covered & ~is_other)
        return self._hop(is_judged, findings, is_altered, seconds)

    def _hop(self, is_judged: Column, findings: Column, is_altered: Column, seconds: Column) -> _Hop:
        is_late = seconds > (np.inf if self.wanted.late_seconds is None else self.wanted.late_seconds)
        findings = findings | is_altered * Verdict.ALTERED.bit | is_late * Verdict.LATE.bit
        return _Hop(is_judged, findings, seconds)

    def _outbox_verdict(self, rows: Rows) -> Column:
        # Events acknowledged before the inbox was read have their message below the last sequence.
        asked_at, audit, first = micros_of(self.received_at), self.audit, rows.first_own
        state, published = rows.event["state"], micros(rows.event["published_at"])
        removed = (audit.outbox_pruned_before, None if self.wanted.lake else audit.archived_before)
        removed_before = micros_of(max((limit for limit in removed if limit), default=None)) + _CLOCK
        is_removed = (at(rows.time, first) < removed_before) | rows.has_hash(audit.erased)
        return _case(
            (~rows.is_known & is_removed, Verdict.PRUNED),
            (~rows.is_known, Verdict.UNEXPECTED),
            (is_in(state, ["PENDING", "CLAIMED"]), Verdict.PENDING),
            (is_in(state, ["DEAD"]), Verdict.DEAD),
            (first >= 0, Verdict.DELIVERED),
            (published >= asked_at - self.wanted.grace_seconds * 1e6, Verdict.PENDING),
            (_is_expired(rows.event, self.own, asked_at), Verdict.EXPIRED),
            otherwise=Verdict.MISSING_IN_STREAM,
        )

    def _is_duplicated(self, rows: Rows) -> Column:
        own = np.flatnonzero(rows.is_own)
        repeated = np.flatnonzero(rows.who[own[1:]] == rows.who[own[:-1]])
        earlier, later = own[repeated], own[repeated + 1]
        events = rows.event.take(pa.array(rows.who[later]))
        is_explained = explained(self.audit.replays, events, rows.time[earlier], rows.time[later])
        found = np.full(rows.count, False)
        found[rows.who[later[~is_explained]]] = True
        return found

    def _inbox_verdict(self, rows: Rows, consumer: ConsumerInfo, first: Column) -> Column:
        asked_at, received = micros_of(self.received_at), rows.received
        time, position = at(rows.time, first), at(rows.position, first)
        is_absent = flags(received["id"].is_null())
        is_held = micros(received["locked_until"]) > asked_at
        is_unsettled = position > consumer.ack_floor
        is_young = time > asked_at - self.wanted.grace_seconds * 1e6
        has_left = position < self.streams[consumer.stream].first_seq
        is_removed = time < micros_of(self.audit.inbox_pruned_before) + _CLOCK
        is_removed |= rows.has_hash(self.audit.erased)
        created = micros_of(datetime.fromisoformat(consumer.created))
        return _case(
            (flags(received["processed_at"].is_valid()), Verdict.DELIVERED),
            (flags(received["dead_lettered_at"].is_valid()), Verdict.DEAD),
            (is_unsettled | is_held | is_young, Verdict.PENDING),
            # A consumer never received the messages that had left the stream before its creation.
            (is_absent & has_left & (time < created), Verdict.EXPIRED),
            (is_absent & is_removed, Verdict.PRUNED),
            otherwise=Verdict.MISSING_IN_INBOX,
        )


def _is_expired(event: pa.Table, state: StreamInfo, asked_at: float) -> Column:
    """Whether retention may have removed the message.

    A stream that refuses messages when it is full removes only messages above the maximum age. A younger
    missing message was removed by an operator, even at the stream's head. No retention removes a message
    that the stream never had: of an earlier stream, or above the last sequence.
    """
    published = micros(event["published_at"])
    expired = flags(pc.not_equal(event["stream"], state.name))
    if state.max_age_seconds:  # messages reach this age during the read, too
        read_at = max(asked_at, micros_of(state.now))
        expired |= published < read_at - state.max_age_seconds * 1e6 + _CLOCK
    created, sequence = micros_of(datetime.fromisoformat(state.created)), numbers(event["stream_seq"])
    had = (published >= created - _CLOCK) & ~(sequence > state.last_seq)
    config = state.config
    is_replaced = config.get("max_msgs_per_subject", -1) > 0 and not config.get("discard_new_per_subject")
    if is_replaced or config.get("retention", "limits") != "limits" or config.get("allow_msg_ttl"):
        expired |= had  # the stream may have kept older messages
    is_limited = any(config.get(name, -1) > 0 for name in ("max_msgs", "max_bytes"))
    if is_limited and config.get("discard", "old") == "old":
        is_before_first = published < micros_of(state.first_time)
        expired |= had & np.where(np.isnan(sequence), is_before_first, sequence < state.first_seq)
    return expired


def _case(*rules: tuple[Column, Verdict], otherwise: Verdict) -> Column:
    """Return the bit of the first rule whose condition holds."""
    conditions, verdicts = zip(*rules, strict=True)
    return np.select(conditions, [verdict.bit for verdict in verdicts], otherwise.bit)


def _covers(consumer: ConsumerInfo, subjects: pa.ChunkedArray, seq: Column, time: Column) -> Column:
    """Whether the consumer's filters and start include each message."""
    patterns = "|".join(f"(?:{_regex(pattern)})" for pattern in consumer.filters) or "(?s)^.*$"
    encoded = subjects.combine_chunks().dictionary_encode()
    covered = flags(pc.match_substring_regex(encoded.dictionary, patterns).take(encoded.indices))
    match consumer.config.get("deliver_policy", "all"):
        case "all":
            return covered
        case "by_start_sequence":
            return covered & (seq >= int(consumer.config["opt_start_seq"]))
        case "by_start_time":
            start = consumer.config["opt_start_time"]
        case _:  # begins with the last messages at its creation
            start = consumer.created
    return covered & (time >= micros_of(datetime.fromisoformat(start)))


def _regex(pattern: str) -> str:
    """Convert a subject pattern to a regular expression: ``*`` is one token, a final ``>`` one or more."""
    wild = {"*": "[^.]+", ">": ".+"}
    return "^" + r"\.".join(wild.get(token) or re.escape(token) for token in pattern.split(".")) + "$"


def _trouble(rows: Rows, number: int, hop: _Hop, chosen: Column, further: Sequence[str] = ()) -> pa.Table:
    """Return the chosen events with their findings at the hop."""
    events = rows.event.select([*_OF_EVENT, *further]).filter(pa.array(chosen))
    added = {"hop": [number] * len(events), "findings": hop.findings[chosen], "seconds": hop.seconds[chosen]}
    for name, values in added.items():
        events = events.append_column(name, pa.array(values, TROUBLE.field(name).type, from_pandas=True))
    return events


def _counted(number: int, hop: _Hop) -> Iterator[pa.Table]:
    """Count the IDs of a hop, and their latencies."""
    seconds = hop.seconds[hop.is_judged & ~np.isnan(hop.seconds)]
    rounded = (seconds.view(np.int64) & _LATENCY_BITS).view(float)
    values, counts = np.unique(rounded, return_counts=True)
    yield pa.table({"counted": ["ids"], "hop": [number], "rows": [np.count_nonzero(hop.is_judged)]})
    latency = {"counted": pa.repeat("latency", len(values)), "hop": pa.repeat(number, len(values))}
    yield pa.table(latency | {"seconds": values, "rows": counts})
