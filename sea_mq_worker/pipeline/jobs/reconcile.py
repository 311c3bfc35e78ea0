"""Prove ID by ID that each event of the outbox reached the stream, and each message the inbox.

The sources are read as of moments against the direction in which an event travels: consumers' positions,
inbox, streams, outbox, archive. An event found in one source had then already reached the sources before it.
Events in transit therefore look pending, and never lost. Of each row only what the comparison needs is
exchanged: its ID, fingerprints, times and positions; see ``verdicts``.
"""

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo, consumer_info
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.operators.tables import open_tables
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.pipeline import register
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.fingerprints import (
    OF_EVENT,
    of_events,
    of_messages,
    uuid_bytes,
    uuid_text,
)
from sea_mq_worker.pipeline.jetstream.state import query_nats, stored_message, stream_state
from sea_mq_worker.pipeline.jobs.incarnations import moment_text
from sea_mq_worker.pipeline.lake import Lake
from sea_mq_worker.pipeline.postgres import Snapshot, literal, snapshot
from sea_mq_worker.pipeline.session import configured
from sea_mq_worker.pipeline.verdicts import (
    ARCHIVED,
    COPY,
    INCARNATION,
    RECEIVED,
    REPLAYED,
    TABLE,
    Judge,
    Verdict,
    out_of_order,
)
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings, config_file

_SQL = load_queries("pipeline_reconcile")
_CLOCK = timedelta(days=1)
"""Margin before a period in the other sources: clocks differ, and a broker's can be set back."""

_SHARES = (0.5, 0.95, 0.99)
_ACCURACY = 10_000
_EXAMPLES = 20
_BATCH = 1000
_PAUSE_SECONDS = 1.0
_FILTERS = {
    "event_type": ("event_type", "event_types"),
    "ordering_key": ("ordering_key", "ordering_keys"),
    "correlation_id": ("correlation_id", "correlation_ids"),
}
"""Names of each column's filter in records of the worker's replay, and of the pipeline's, with lists."""
_OF_ROW = (*OF_EVENT, "created_at", "published_at", "ordering_key", "state", "stream", "stream_seq")
_Replays: TypeAlias = Sequence[tuple[datetime, Mapping[str, Any]]]
"""The time of each audited replay, and its recorded selection."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Options for putting lost events back; ``actor`` and ``reason`` are for the audit.

    Attributes:
        cap: put back no event if more than this are lost, because the settings may name another broker.
        dry_run: only count.
    """

    actor: str
    reason: str
    cap: int
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HopLatency:
    """Seconds per hop; the percentiles are exact to a ten-thousandth of the events."""

    events: int
    p50: float
    p95: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """Result for a hop.

    Attributes:
        name: source and target of the hop.
        ids: number of judged IDs.
        verdicts: number of IDs per verdict; the sum is ``ids``.
        findings: number of IDs per finding, including IDs with a worse verdict.
        examples: some IDs per verdict except ``delivered``, sorted.
        latency: from occurrence to stream, or from stream to effect; None: no ID passed the hop.
    """

    name: str
    ids: int
    verdicts: Mapping[Verdict, int]
    findings: Mapping[Verdict, int]
    examples: Mapping[Verdict, Sequence[str]]
    latency: HopLatency | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """Result of putting lost events back.

    Attributes:
        lost: number of lost IDs.
        replayed: number of events put back; 0 in a dry run, and if more than the cap are lost.
        capped: whether more rows than the cap are lost, so that none was put back.
        archived: some IDs of lost events that are only in the archive; `pipeline replay --id` puts them back.
        archived_count: number of lost events that are only in the archive.
    """

    lost: int
    replayed: int
    capped: bool
    archived: Sequence[str]
    archived_count: int
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """Result of a comparison; ``rows`` is the number of rows read from each table, stream and lake table.

    ``failed`` is the number of findings of the kinds in ``failed_on``, which the command fails on.
    """

    since: datetime | None
    until: datetime | None
    rows: Mapping[str, int]
    hops: Sequence[Hop]
    notes: Sequence[str]
    requeued: Requeued | None
    failed_on: Sequence[Verdict] = ()
    failed: int = 0

    def found(self, verdicts: Collection[str]) -> int:
        """Count findings of these kinds over all hops."""
        return sum(hop.findings.get(Verdict(verdict), 0) for hop in self.hops for verdict in verdicts)


def reconcile(
    spark: SparkSession,
    settings: Settings,
    *,
    lake: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    grace_seconds: float = 60.0,
    late_seconds: float | None = None,
    out: str | None = None,
    requeue: Requeue | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Reconciliation:
    """Judge each ID at each hop; see ``Verdict``. Each source is read once, and each table as of one moment.

    Args:
        spark: the session.
        settings: the database, the stream and the consumers.
        lake: the lake with archive and bronze; None: only tables and streams.
        since: compare only own events created, and other messages stored, at this time or later.
        until: compare only own events created, and other messages stored, before this time.
        grace_seconds: events published or stored within this time are never missing.
        late_seconds: a hop is late above this time; None: never.
        out: a new folder for JSON lines of all IDs with another verdict than delivered; None: no files.
        requeue: put back the events that the stream lost; None: change nothing.
        on_progress: receives a line after each step.

    Raises:
        PipelineError: the output folder already exists, or there is no lake.
        DataLossError: a stream was recreated or restored during the read.
        StoreUnavailableError: PostgreSQL is unavailable.
        BrokerUnavailableError: NATS is unavailable.
        ContractError: a stream, a consumer or a table is missing.
    """
    if out and Path(out).exists():
        raise PipelineError(f"{out} already exists: name a new folder, so that results do not mix")
    with configured(spark), ExitStack() as held:
        register(spark)
        if lake:
            Lake(spark, lake).require(("archive", "bronze"))
        sources = _Sources(spark, settings, Lake(spark, lake) if lake else None, since, until, held)
        judge, facts, counts, notes = sources.read(
            timedelta(seconds=grace_seconds), late_seconds, on_progress
        )
        judged = _kept(judge.judge(facts), held)
        moved = _kept(out_of_order(judged), held)
        found = _findings(judged, moved)
        hops = _summaries(judge.hops, found)
        received, events = F.count_if("is_received"), F.count_if("event.in_table")
        [of_tables] = judged.agg(received.alias("inbox"), events.alias("outbox")).collect()
        for hop in hops:
            on_progress(f"{hop.name}: judged {hop.ids}")
        if out:
            _named(found, judge.hops).write.json(out)
        requeued = None
        if Verdict.MISSING_IN_STREAM in hops[0].verdicts:
            missing = F.col("findings").bitwiseAND(Verdict.MISSING_IN_STREAM.bit) != 0
            lost = found.where(missing).select("id", "event.*")
            notes += _restore_signs(lost, judge.own)
            requeued = _put_back(settings, lost, requeue, on_progress) if requeue else None
        rows = counts | of_tables.asDict()
    return Reconciliation(since=since, until=until, rows=rows, hops=hops, notes=notes, requeued=requeued)


def _kept(rows: DataFrame, held: ExitStack) -> DataFrame:
    """Keep rows on the executors' disks until the end of the job."""
    kept = rows.persist(StorageLevel.DISK_ONLY)
    held.callback(kept.unpersist)
    return kept


# --- Read the sources


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where the facts come from; ``held`` keeps snapshots and what was read of streams until it is closed."""

    spark: SparkSession
    settings: Settings
    lake: Lake | None
    since: datetime | None
    until: datetime | None
    held: ExitStack

    def read(
        self, grace: timedelta, late_seconds: float | None, on_progress: Callable[[str], None]
    ) -> tuple[Judge, DataFrame, dict[str, int], list[str]]:
        """Return the judge, the facts, the numbers of rows of streams and lake tables, and notes."""
        consumers = query_nats(self.settings, self._consumers)
        inbox = self.held.enter_context(snapshot(self.settings))
        names = dict.fromkeys([self.settings.stream, *(one.stream for one in consumers)])
        before = {name: stream_state(self.settings, name) for name in names}
        outbox = self.held.enter_context(snapshot(self.settings))
        actions = [
            (row["action"], row["at"], json.loads(row["selection"])) for row in outbox.rows(_SQL["actions"])
        ]
        archived_before = _limit(actions, "archive")
        removed = [_limit(actions, "prune_outbox"), None if self.lake else archived_before]
        judge = Judge(
            context=self.settings.context,
            consumers=consumers,
            asked_at=inbox.at,
            streams=before,
            in_part=bool(self.since or self.until),
            grace=grace,
            late_seconds=late_seconds,
            outbox_removed_before=max(filter(None, removed), default=None),
            inbox_removed_before=_limit(actions, "prune_inbox"),
            erased=[each for kind, _, chosen in actions if kind == "erase" for each in chosen["id_sha256"]],
        )
        first_seqs = self._first_seqs(outbox, before)
        streamed = {
            name: self._fingerprints(judge, self._messages(state, first_seqs[name]), name)
            for name, state in before.items()
        }
        counts = _counted(streamed)
        for name, count in counts.items():
            on_progress(f"{name}: read {count}")
        judge = replace(judge, streams={name: self._after(state) for name, state in before.items()})
        landed = {name: self._fingerprints(judge, rows, name) for name, rows in self._landed(judge).items()}
        archived = self._archived()
        counts |= _counted({f"bronze {name}": rows for name, rows in landed.items()} | archived)
        replays = [(at, chosen) for kind, at, chosen in actions if kind == "replay"]
        events = self._events(_united([self._outbox(outbox), *archived.values()]), replays)
        copies = [_copies(rows) for rows in (*streamed.values(), *landed.values())]
        facts = _united([*copies, self._received(inbox), events, self._replayed(replays)])
        return judge, facts, counts, self._notes(judge, archived_before)

    def _notes(self, judge: Judge, archived_before: datetime | None) -> list[str]:
        """Return notes on limits of the result, and on consumers that are ahead of their stream."""
        notes = [
            f"{one.name} has settled sequence {one.ack_floor}, but {one.stream} ends at {last}: "
            "the stream was restored to an older state, and the consumer skips up to that sequence"
            for one in judge.consumers
            if one.ack_floor > (last := judge.streams[one.stream].last_seq)
        ]
        if self.lake is None and archived_before:
            when = archived_before.isoformat()
            notes.append(f"rows published before {when} were archived: use --lake to compare them")
        return notes

    async def _consumers(self, connection: NatsConnection) -> list[ConsumerInfo]:
        named = self.settings.consumers
        return [await consumer_info(connection, one.stream, one.durable) for one in named]

    def _first_seqs(self, tables: Snapshot, streams: Mapping[str, StreamInfo]) -> dict[str, int]:
        """Return the sequence by stream from which on messages are read.

        Rows of the period name sequences, whatever the clocks said. What no row names is found by its time,
        with a margin in which a broker's clock may have been set back.
        """
        if self.since is None:
            return {name: max(state.first_seq, 1) for name, state in streams.items()}
        begin = self.since - _CLOCK
        named = {row["stream"]: row["seq"] for row in tables.rows(_SQL["first_seqs"], self.since)}

        async def search(connection: NatsConnection) -> dict[str, int]:
            found = {}
            for name, state in streams.items():
                low, high = state.first_seq, state.last_seq + 1
                while low < high:
                    middle = (low + high) // 2
                    message = await stored_message(connection, name, {"seq": middle, "next_by_subj": ">"})
                    if message is None or datetime.fromisoformat(message["time"]) >= begin:
                        high = middle
                    else:
                        low = int(message["seq"]) + 1
                found[name] = max(state.first_seq, min(low, named.get(name, low)), 1)
            return found

        return query_nats(self.settings, search)

    def _messages(self, state: StreamInfo, first: int) -> DataFrame:
        """Return a stream's messages; those that retention removes during the read are missing."""
        options = {"stream": state.name, "startSeq": str(first), "endSeq": str(state.last_seq)}
        options |= {"failOnDataLoss": "false", "created": state.created}
        if file := config_file():
            options["config"] = file
        read = self.spark.read.format("jetstream").options(**options).load()
        return read.withColumn("place", F.col("seq"))

    def _after(self, before: StreamInfo) -> StreamInfo:
        """Return a stream's state with its first message and its clock after the read."""
        after = stream_state(self.settings, before.name)
        if after.created != before.created or after.last_seq < before.last_seq:
            raise DataLossError(
                f"stream {before.name} was recreated or restored during the read: run reconcile again when "
                "the broker is stable"
            )
        return replace(before, first_seq=after.first_seq, first_time=after.first_time, now=after.now)

    def _landed(self, judge: Judge) -> dict[str, DataFrame]:
        """Return the messages that left the streams: of older streams, and those before the present start."""
        if self.lake is None or not self.lake.exists("bronze"):
            return {}
        bronze, found = self.lake.read("bronze"), {}
        if "message_id" not in bronze.columns:  # of release 1.0
            bronze = bronze.withColumn("message_id", F.lit(None).cast("string"))
        for name, state in judge.streams.items():
            rows = bronze.where(F.col("stream") == name)
            if self.since:
                begin = self.since - _CLOCK
                rows = rows.where((F.col("date") >= F.lit(begin.date())) & (F.col("time") >= F.lit(begin)))
            names = {row["incarnation"] for row in rows.select("incarnation").distinct().collect()}
            present = moment_text(state.created)
            earlier = {each.partition("#")[0] for each in names} - {present}
            created = [*sorted(earlier, key=lambda text: text.rstrip("Z")), present]
            parts = F.split("incarnation", "#")
            number = F.array_position(F.array(*map(F.lit, created)), parts[0])
            place = F.col("seq") + (number - len(created)) * F.lit(INCARNATION)
            # By values, so that statistics of files tell which to read.
            others = [each for each in names if each.partition("#")[0] != present]
            rows = rows.where(F.col("incarnation").isin(others) | (F.col("seq") < state.first_seq))
            rows = rows.withColumn("place", place)
            if any("#" in each for each in names):
                restores = F.coalesce(F.get(parts, F.lit(1)).cast("int"), F.lit(0))
                rows = rows.withColumn("restores", restores)
            found[name] = rows
        return found

    def _fingerprints(self, judge: Judge, rows: DataFrame, stream: str) -> DataFrame:
        """Return fingerprints of messages of a stream; of other streams than the own, those of the period."""
        if stream != self.settings.stream:
            for limit, compares in ((self.since, F.col("time").__ge__), (self.until, F.col("time").__lt__)):
                rows = rows.where(compares(F.lit(limit))) if limit else rows
        kind = COPY + list(judge.streams).index(stream)
        rows = rows.withColumns({"kind": F.lit(kind), "hops": judge.covers(stream)})
        restores = ["restores"] if "restores" in rows.columns else []
        return of_messages(rows, ["kind", "place", "time", "hops", *restores], self._kept)

    def _kept(self, rows: DataFrame) -> DataFrame:
        return _kept(rows, self.held)

    def _received(self, tables: Snapshot) -> DataFrame:
        columns = ["processed_at", "dead_lettered_at", "locked_until", "stream_seq"]
        made = ["uuid_send(message_id) AS id", "substring(content_hash, 1, 16) AS content"]
        where = f"received_at >= {literal(self.since - _CLOCK)}" if self.since else "true"
        rows = tables.read(self.spark, "inbox_messages", [*made, *columns], where)
        received = F.struct(*columns, "content").alias("received")
        return rows.select("id", F.lit(RECEIVED).alias("kind"), F.lit(0).alias("place"), received)

    def _outbox(self, tables: Snapshot) -> DataFrame:
        given = [f"created_at >= {literal(self.since)}"] if self.since else []
        given += [f"created_at < {literal(self.until)}"] if self.until else []
        columns = ["uuid_send(id) AS id", *(name for name in _OF_ROW if name != "id")]
        rows = tables.read(self.spark, "outbox_events", columns, " AND ".join(given) or "true")
        return rows.withColumn("in_table", F.lit(True))

    def _archived(self) -> dict[str, DataFrame]:
        if self.lake is None or not self.lake.exists("archive"):
            return {}
        rows = self.lake.read("archive").where(F.col("context") == self.settings.context)
        if self.since:
            rows = rows.where(F.col("date") >= F.lit((self.since - _CLOCK).date()))
            rows = rows.where(F.col("created_at") >= F.lit(self.since))
        if self.until:
            rows = rows.where(F.col("created_at") < F.lit(self.until))
        rows = rows.withColumns({"id": uuid_bytes(F.col("id")), "state": F.lit("PUBLISHED")})
        return {"archive": rows.select(*_OF_ROW, F.lit(False).alias("in_table"))}

    def _events(self, rows: DataFrame, replays: _Replays) -> DataFrame:
        """Return facts about events; of several with one ID the table's comes first, then the latest one."""
        selected = [
            _selected(at, chosen) for at, chosen in replays if not isinstance(chosen.get("ids"), list)
        ]
        added = {
            "kind": F.when(F.col("in_table"), TABLE).otherwise(ARCHIVED),
            "place": -F.coalesce(F.unix_micros("published_at"), F.lit(0)),
            # Of 100 million keys two have one number, and count as one key, with a probability of 1 in 3,700.
            "key": F.when(F.col("ordering_key").isNotNull(), F.xxhash64("ordering_key")),
            "replays": F.array_compact(F.array(*selected).cast("array<timestamp>")),
        }
        kept = [
            "state",
            "occurred_at",
            "created_at",
            "published_at",
            "seq",
            "stream",
            "stream_seq",
            "in_table",
        ]
        kept += ["key", "replays"]
        names = {"context": self.settings.context, "source": self.settings.source}
        kept_too = ["id", "kind", "place", *kept]
        events = of_events(rows.withColumns(added), kept_too, self._kept, **names)
        event = F.struct(*kept, "sent").alias("event")
        return events.select("id", "kind", "place", event)

    def _replayed(self, replays: _Replays) -> DataFrame:
        """Return facts about the IDs that replays name."""
        times: dict[str, list[datetime]] = {}
        for at, chosen in replays:
            for each in chosen["ids"] if isinstance(chosen.get("ids"), list) else ():
                times.setdefault(each, []).append(at)
        rows = [(UUID(each).bytes, REPLAYED, 0, found) for each, found in times.items()]
        columns = "id BINARY, kind INT, place BIGINT, replayed ARRAY<TIMESTAMP>"
        return self.spark.createDataFrame(rows, columns)


def _limit(actions: Sequence[tuple[str, datetime, Mapping[str, Any]]], wanted: str) -> datetime | None:
    """Return the latest time before which operators removed rows; None: they removed none."""
    limits = (chosen["before"] for action, _, chosen in actions if action == wanted)
    return max(map(datetime.fromisoformat, limits), default=None)


def _selected(at: datetime, chosen: Mapping[str, Any]) -> Column:
    """Return the time of a replay whose record's filters select an event, else null.

    The IDs are unknown if the record contains only their number. Such a replay then applies to all events
    that its other filters select.
    """
    is_selected = F.lit(True)
    for column, (one, several) in _FILTERS.items():
        if values := chosen.get(several) or ([chosen[one]] if chosen.get(one) else None):
            is_selected &= F.col(column).isin(list(values))
    for limit, compares in (("since", F.col("created_at").__ge__), ("until", F.col("created_at").__lt__)):
        if text := chosen.get(limit):
            is_selected &= compares(F.lit(datetime.fromisoformat(text)))
    return F.when(is_selected, F.lit(at))


def _counted(frames: Mapping[str, DataFrame]) -> dict[str, int]:
    """Read the frames, and return the number of rows of each."""
    if not frames:
        return {}
    named = _united([rows.select(F.lit(name).alias("name")) for name, rows in frames.items()])
    found = {row["name"]: row["count"] for row in named.groupBy("name").count().collect()}
    return {name: found.get(name, 0) for name in frames}


def _copies(rows: DataFrame) -> DataFrame:
    """Return facts about messages."""
    if "restores" in rows.columns:  # the later message of a sequence counts
        latest = Window.partitionBy("place").orderBy(F.desc("restores"))
        rows = rows.withColumn("rank", F.row_number().over(latest)).where("rank = 1")
    content = F.when(F.col("hops") != 0, F.col("content")).alias("content")  # for the inbox
    return rows.select("id", "kind", "place", F.struct("time", "sent", content, "hops").alias("copy"))


def _united(parts: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


# --- Count, show and write the findings


def _findings(judged: DataFrame, moved: DataFrame) -> DataFrame:
    """Return the findings on each ID at each hop."""
    found = judged.join(moved.withColumn("is_moved", F.lit(True)), "id", "left")
    found = found.select("id", "event", "is_moved", F.inline("hops"))
    moved_bit = F.when(F.expr("is_moved AND hop = 0"), Verdict.OUT_OF_ORDER.bit).otherwise(0)
    return found.withColumn("findings", F.col("findings").bitwiseOR(moved_bit))


def _summaries(names: Sequence[str], found: DataFrame) -> list[Hop]:
    worst = F.expr("findings & -findings")  # the lowest bit
    counts = [
        F.count("*").alias("ids"),
        F.count("seconds").alias("events"),
        F.max("seconds").alias("longest"),
    ]
    for each in Verdict:
        is_found = F.col("findings").bitwiseAND(each.bit) == each.bit
        counts.append(F.count_if(worst == each.bit).alias(f"verdict {each}"))
        counts.append(
            F.count_if(is_found & (F.lit(each.bit > 0) | (F.col("findings") == 0))).alias(each.value)
        )
    counts.append(F.percentile_approx("seconds", list(_SHARES), _ACCURACY).alias("shares"))
    rows = {row["hop"]: row for row in found.groupBy("hop").agg(*counts).collect()}
    examples: dict[tuple[int, int], list[str]] = {}
    if any(row["verdict delivered"] < row["ids"] for row in rows.values()):
        rank = F.row_number().over(Window.partitionBy("hop", "verdict").orderBy("id"))
        bad = found.where("findings != 0").withColumn("verdict", worst).withColumn("rank", rank)
        for row in bad.where(F.col("rank") <= _EXAMPLES).orderBy("id").collect():
            examples.setdefault((row["hop"], row["verdict"]), []).append(str(UUID(bytes=bytes(row["id"]))))
    return [
        Hop(
            name=name,
            ids=row["ids"] if row else 0,
            verdicts={each: row[f"verdict {each}"] for each in Verdict if row and row[f"verdict {each}"]},
            findings={each: row[each.value] for each in Verdict if row and row[each.value]},
            examples={each: examples[number, each.bit] for each in Verdict if (number, each.bit) in examples},
            latency=HopLatency(
                events=row["events"],
                **dict(zip(("p50", "p95", "p99"), row["shares"], strict=True)),
                longest=row["longest"],
            )
            if row and row["events"]
            else None,
        )
        for number, name in enumerate(names)
        for row in [rows.get(number)]
    ]


def _named(found: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the IDs with another verdict than delivered, with the texts of hop, verdict and findings."""
    flags = (F.when(F.col("findings").bitwiseAND(each.bit) != 0, each.value) for each in Verdict)
    texts = found.where("findings != 0").withColumn("findings", F.array_compact(F.array(*flags)))
    hop = F.get(F.array(*map(F.lit, names)), F.col("hop")).alias("hop")
    verdict = F.get("findings", F.lit(0)).alias("verdict")
    return texts.select(hop, uuid_text(F.col("id")).alias("id"), verdict, "findings", "seconds")


# --- Events that the stream lost


def _restore_signs(lost: DataFrame, state: StreamInfo) -> list[str]:
    """Describe the signs of a restored or recreated stream that the lost events show."""
    is_older = F.col("published_at") < F.lit(datetime.fromisoformat(state.created))
    is_above = F.col("stream_seq") > state.last_seq
    count = lost.where((F.col("stream") == state.name) & (is_older | is_above)).count()
    note = (
        f"{state.name} was restored to an older state or created again: {count} lost IDs were acknowledged"
        f" above its last sequence {state.last_seq}, or before its creation at {state.created}"
    )
    return [note] if count else []


def _put_back(
    settings: Settings, lost: DataFrame, how: Requeue, on_progress: Callable[[str], None]
) -> Requeued:
    """Set lost rows that are still in the table from PUBLISHED to PENDING, earliest first.

    Each batch is one transaction of the worker's own replay, with an audit record. A repetition puts back
    only rows that are still lost and PUBLISHED.

    Raises:
        StoreUnavailableError: earlier batches stay put back; a repetition is safe.
    """
    rows, archived = lost.where("in_table").count(), lost.where("NOT in_table").count()
    capped, replayed = rows > how.cap, 0
    if rows and not (how.dry_run or capped):
        chosen = lost.where("in_table").orderBy("seq").select("id").toLocalIterator()
        with asyncio.Runner() as runner:
            while batch := [UUID(bytes=bytes(row["id"])) for row in islice(chosen, _BATCH)]:
                if replayed:
                    time.sleep(_PAUSE_SECONDS)  # the worker's new events wait for few of them
                replayed += runner.run(_replayed(settings, tuple(batch), how))
                on_progress(f"put back {replayed} of {rows}")
    named = lost.where("NOT in_table").orderBy("seq").limit(_EXAMPLES).collect()
    return Requeued(
        lost=rows + archived,
        replayed=replayed,
        capped=capped,
        archived=[str(UUID(bytes=bytes(row["id"]))) for row in named],
        archived_count=archived,
        dry_run=how.dry_run,
    )


async def _replayed(settings: Settings, ids: tuple[UUID, ...], how: Requeue) -> int:
    which = OutboxFilter(ids=ids, states=(EventState.PUBLISHED,))
    async with open_tables(settings) as pool:
        result = await replay_matching(pool, which, actor=how.actor, reason=how.reason, cap=len(ids))
    return result.replayed
