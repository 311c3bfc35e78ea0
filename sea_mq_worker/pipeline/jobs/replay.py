"""Publish events of the outbox and of its archive again, in order per key.

An event that is still in the table becomes PENDING again, as in the worker's own replay. An event that is
only in the archive is inserted again with all its columns: its ID, its position in the order of its key, and
the stream sequence of its earlier copy. Both are due when the earlier copy has left the stream's
deduplication window.

One task of an executor puts the events back in the order of ``seq``, batch by batch, each in one transaction.
At any time, the events of a key that were put back are therefore the first ones of the selection, and the
publisher claims the events of a key only from the earliest open event on. The order holds while publishers
run, regardless of the pace of the batches.

Each batch records its progress in the audit record in the same transaction. After a crash, the same command
continues from there and duplicates nothing; it leaves out events that were published since the replay began.
"""

import asyncio
import hashlib
import json
import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyspark import StorageLevel, inheritable_thread_target
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake import ARCHIVE, ERASED, Lake
from sea_mq_worker.pipeline.postgres import (
    PAGES,
    Session,
    Snapshot,
    literal,
    open_connection,
    session,
    snapshot,
    with_password,
)
from sea_mq_worker.pipeline.session import configured
from sea_mq_worker.postgres.errors import translated
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings

TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
"""States from which an event can be replayed."""

_BATCH_MAX = 1000
_NAMED_MAX = 20
_LISTED_MAX = 1000
"""Cap on IDs in the audit, and on those that PostgreSQL is asked for; more IDs are only joined."""
_LOOK_SECONDS = 1.0
_CLOCK_STEP_MAX = timedelta(days=1)
"""Cap on the time by which a publication may precede the creation, after PostgreSQL's clock was set back."""

_RESTORED = (
    *("id", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *("correlation_id", "causation_id", "seq", "created_at", "partition_key", "ordering_key", "headers"),
    *("metadata", "stream", "stream_seq"),
)
"""Columns of a restored event, the parameters of the statement `restore` in order."""
_KEY = ("id", "seq", "event_type", "state", "published_at")

_TIMES = ("since", "until", "published_since", "published_until")
_SQL = load_queries("pipeline_replay")
_Condition: TypeAlias = tuple[str, str, Any]
"""Column, operator of SQL and value (for ``IN``, a sequence); a value of None sets no condition."""
_COMPARISONS: Mapping[str, Callable[[Column, Any], Column]] = {
    "<": operator.lt,
    ">=": operator.ge,
    "IN": lambda column, values: column.isin(*values),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of events; None or an empty filter matches all events.

    Attributes:
        states: PUBLISHED or DEAD; archived events were PUBLISHED.
        since: only events created at this time or later.
        until: only events created before this time.
        published_since: only events last published at this time or later.
        published_until: only events last published before this time.
        words: the times as the operator wrote them, by name.
    """

    states: tuple[EventState, ...] = TERMINAL
    ids: tuple[UUID, ...] = ()
    event_types: tuple[str, ...] = ()
    ordering_keys: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    published_since: datetime | None = None
    published_until: datetime | None = None
    words: tuple[tuple[str, str], ...] = ()

    def audited(self, lake: str | None) -> dict[str, Any]:
        """Return the selection for the audit; of many IDs, only their number and digest."""
        given = {name: value for name, value in asdict(self).items() if value and name != "words"}
        ids = sorted(map(str, self.ids))
        if len(ids) > _LISTED_MAX:
            given["ids"] = {"count": len(ids), "sha256": hashlib.sha256("".join(ids).encode()).hexdigest()}
        elif ids:
            given["ids"] = ids
        return {**given, "lake": lake}

    def with_times(self, audited: Mapping[str, Any]) -> "Selection":
        """Return the selection with an earlier run's times; an age such as 30d means another time today."""
        given = {name: datetime.fromisoformat(audited[name]) for name in _TIMES if name in audited}
        return replace(self, **given)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Number of selected events of one type."""

    event_type: str
    table: int
    archive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJobResult:
    """Result of a replay.

    Attributes:
        matched: events selected for this run.
        types: the same events by type and by source.
        replayed: events put back by this run; 0 in a dry run, and if more than the cap matched.
        skipped: events that were gone or no longer PUBLISHED or DEAD when their batch was put back.
        skipped_ids: some IDs of skipped events.
        action: the audit record; None: nothing was to be changed.
        resumed_after: an earlier run was complete up to this seq; None: this run began a new replay.
        seconds: time spent putting events back.
        stopped: whether a stop was requested; the same command continues.
        dry_run: whether ``matched`` events would be put back, and nothing was changed.
    """

    matched: int
    types: tuple[Matched, ...]
    replayed: int = 0
    skipped: int = 0
    skipped_ids: tuple[str, ...] = ()
    action: int | None = None
    resumed_after: int | None = None
    seconds: float = 0.0
    stopped: bool = False
    dry_run: bool = False


def replay(
    spark: SparkSession,
    settings: Settings,
    selection: Selection,
    *,
    lake: str | None,
    actor: str,
    reason: str,
    stop: threading.Event | None = None,
    on_progress: Callable[[str], None] = print,
    cap: int = 1000,
    per_second: int = 1000,
    dry_run: bool = False,
    restart: bool = False,
) -> ReplayJobResult:
    """Put the selected events back into the outbox.

    Args:
        spark: the session; its executors reach the database, and have this package.
        settings: the database and the context.
        selection: the events.
        lake: the lake with the archive; None: only the table.
        actor: the operator, for the audit.
        reason: the operator's reason, for the audit.
        stop: ends the replay after the current batch.
        on_progress: called every second.
        cap: replay no event if more than this many match.
        per_second: maximum of events put back a second, so that a large replay does not delay new events.
        dry_run: only count.
        restart: begin from the start, although an earlier run was interrupted.

    Raises:
        PipelineError: another run is executing the same replay.
        UnavailableError: a server became unavailable; the same command continues.
        ContractError: the database does not meet the worker's requirements.
    """
    as_given = json.dumps(selection.audited(lake) | dict(selection.words), default=str)
    with configured(spark), session(settings, purpose="replay", hints=OPERATOR_HINTS) as tables:
        earlier = None if restart else next(iter(tables.rows(_SQL["unfinished"], as_given)), None)
        if earlier:
            selection = selection.with_times(json.loads(earlier["selection"]))
        archive = _archive(spark, lake)
        with snapshot(settings) as held:
            chosen = _choose(spark, held, selection, archive, settings.context, earlier=earlier)
            chosen = chosen.persist(StorageLevel.DISK_ONLY)  # so that the snapshot can end
            count, bounds = _counted(chosen)
        try:
            through = earlier["through"] if earlier else None
            found = replace(count, resumed_after=through, dry_run=dry_run)
            if dry_run or found.matched > cap or not (found.matched or earlier):
                return found
            audited = json.dumps(selection.audited(lake), default=str)
            action = earlier or tables.rows(_SQL["begin"], actor, reason, audited, as_given)[0]
            tables.rows(_SQL["stop"], action["id"], False)
            events = _with_content(chosen, archive, settings.context, bounds)
            ordered = events.repartition(1).sortWithinPartitions("seq")
            found = replace(found, action=action["id"])
            return _put_back(
                tables, ordered, found, per_second=per_second, stop=stop, on_progress=on_progress
            )
        finally:
            chosen.unpersist()


# --- Which events


def _archive(spark: SparkSession, address: str | None) -> Lake | None:
    if address is None:
        return None
    lake = Lake(spark, address)
    lake.require([ARCHIVE.name])
    return lake


def _choose(
    spark: SparkSession,
    held: Snapshot,
    selection: Selection,
    lake: Lake | None,
    context: str,
    *,
    earlier: Mapping[str, Any] | None,
) -> DataFrame:
    """Return each event once: the columns of _KEY, and ``archived``.

    The table is read as of the snapshot and the archive afterwards, so an event that moves from one to the
    other is found in at least one. Of an event in both, the table's row counts, in any state. Of an event
    that was archived twice, the row that was published last counts. An event that was erased, and came back
    by a restored backup, is left out. So are the events that an interrupted run has done, ``earlier``, and
    those that were published since it began. Hold the snapshot until the frame's last action.
    """
    rows = _candidates(spark, held, selection, lake, context)
    if selection.ids:
        ids = spark.createDataFrame(pa.table({"id": [str(one) for one in selection.ids]}))
        rows = rows.join(ids, "id", "left_semi")
    if lake and lake.exists(ERASED.name):
        hashes = lake.read(ERASED.name).select("id_sha256")
        rows = rows.join(hashes, fn.sha2("id", 256) == fn.col("id_sha256"), "left_anti")
    # One row for each event: that of the table, else that of the last publication.
    latest = fn.max_by(fn.struct(*_KEY, "archived"), fn.struct(~fn.col("archived"), "published_at"))
    once = rows.groupBy("id").agg(latest.alias("latest")).select("latest.*")
    if earlier:
        is_new = fn.col("published_at") > fn.lit(earlier["at"])
        once = once.where((fn.col("seq") > earlier["through"]) & ~fn.coalesce(is_new, fn.lit(False)))
    return _matching(
        once,
        [
            ("state", "IN", [*map(str, selection.states)]),
            ("published_at", ">=", selection.published_since),
            ("published_at", "<", selection.published_until),
        ],
    )


def _candidates(
    spark: SparkSession, held: Snapshot, selection: Selection, lake: Lake | None, context: str
) -> DataFrame:
    """Return the rows of table and archive that meet the conditions on columns that never change.

    The rows of an event meet all of these conditions, or none. Of the archive, rows that were published
    before the selection are left out, but not those after it: they may be later rows of the same event.
    """
    ids = [str(one) for one in selection.ids] if len(selection.ids) <= _LISTED_MAX else []
    immutable: list[_Condition] = [
        ("created_at", ">=", selection.since),
        ("created_at", "<", selection.until),
        ("event_type", "IN", selection.event_types or None),
        ("ordering_key", "IN", selection.ordering_keys or None),
        ("id", "IN", ids or None),
    ]
    wanted = [f"{column} {sign} {_in_sql(value)}" for column, sign, value in immutable if value is not None]
    where = " AND ".join(wanted) or "true"
    rows = held.read(spark, "outbox_events", _KEY, where, pages=0 if ids else PAGES)
    rows = rows.withColumn("archived", fn.lit(False))
    if not lake or EventState.PUBLISHED not in selection.states:
        return rows
    early = selection.since and selection.since - _CLOCK_STEP_MAX
    published = [("published_at", ">=", limit) for limit in (selection.published_since, early)]
    archived = _matching(
        lake.read(ARCHIVE.name).where(fn.col("context") == context), [*immutable, *published]
    ).withColumns({"state": fn.lit(str(EventState.PUBLISHED)), "archived": fn.lit(True)})
    return rows.unionByName(archived.select(*_KEY, "archived"))


def _in_sql(value: Any) -> str:
    return f"({', '.join(map(literal, value))})" if isinstance(value, Sequence) else literal(value)


def _matching(rows: DataFrame, conditions: Sequence[_Condition]) -> DataFrame:
    for column, sign, value in conditions:
        if value is not None:
            rows = rows.where(_COMPARISONS[sign](fn.col(column), value))
    return rows


def _counted(chosen: DataFrame) -> tuple[ReplayJobResult, tuple[datetime, datetime] | None]:
    """Count the events, and return the range of times at which archived ones were published."""
    archived, published = fn.count_if("archived"), fn.when(fn.col("archived"), fn.unix_micros("published_at"))
    counts = (fn.count("*") - archived, archived, fn.min(published), fn.max(published))
    rows = chosen.groupBy("event_type").agg(*counts).sort("event_type").collect()
    types = tuple(Matched(event_type=row[0], table=row[1], archive=row[2]) for row in rows)
    found = ReplayJobResult(matched=sum(one.table + one.archive for one in types), types=types)
    times = [row[at] for row in rows for at in (3, 4) if row[at] is not None]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    bounds = [epoch + timedelta(microseconds=end(times)) for end in (min, max) if times]
    return found, (bounds[0], bounds[1]) if bounds else None


def _with_content(
    chosen: DataFrame, lake: Lake | None, context: str, bounds: tuple[datetime, datetime] | None
) -> DataFrame:
    """Add the columns of _RESTORED, null for events in the table; times are texts."""
    if lake is None or bounds is None:
        return chosen
    # Literal bounds let Delta skip files; the join cannot.
    rows = lake.read(ARCHIVE.name).where(
        (fn.col("context") == context)
        & fn.col("published_at").between(*bounds)
        & fn.col("date").between(*(bound.date() for bound in bounds))
    )
    times = {
        name: fn.concat(fn.col(name).cast("string"), fn.lit("Z")) for name in ("occurred_at", "created_at")
    }
    more = [name for name in _RESTORED if name not in chosen.columns]
    content = rows.withColumns(times).select("id", "published_at", *more)
    restored = chosen.where("archived").join(content, ["id", "published_at"])
    return chosen.where("NOT archived").unionByName(restored, allowMissingColumns=True)


# --- Back into the outbox


def _put_back(
    tables: Session,
    ordered: DataFrame,
    found: ReplayJobResult,
    *,
    per_second: int,
    stop: threading.Event | None,
    on_progress: Callable[[str], None],
) -> ReplayJobResult:
    """Run the task that puts the events back, and watch the audit record meanwhile."""
    began, action, own = time.monotonic(), found.action, with_password(tables.settings)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner() as runner:
            yield runner.run(_in_batches(own, batches, action, per_second))

    def affected() -> int:
        return int(tables.rows(_SQL["progress"], action)[0]["affected"])

    before = affected()
    done = ordered.mapInArrow(run, "skipped BIGINT, ids ARRAY<STRING>, stopped BOOLEAN, taken BOOLEAN")
    with ThreadPoolExecutor(1) as executor:
        work = executor.submit(inheritable_thread_target(done.sparkSession)(done.collect))
        while not wait([work], _LOOK_SECONDS).done:
            on_progress(f"replay: {affected() - before:,} of {found.matched:,} put back")
            if stop and stop.is_set():
                tables.rows(_SQL["stop"], action, True)
        [[skipped, ids, stopped, taken]] = work.result() or [(0, (), False, False)]
    if taken:
        raise PipelineError(
            f"another run is continuing replay {action}; wait until it ends, or stop it first"
        )
    if not stopped:
        tables.rows(_SQL["finish"], action)
    return replace(
        found,
        replayed=affected() - before,
        skipped=skipped,
        skipped_ids=tuple(ids),
        seconds=time.monotonic() - began,
        stopped=stopped,
    )


async def _in_batches(
    settings: Settings, batches: Iterator[pa.RecordBatch], action: int | None, per_second: int
) -> pa.RecordBatch:
    """Put events back in an executor, from the seq on that the record has reached; return what was skipped.

    That another run continues the same replay is a result, since Spark would try a failed task again.
    """
    skipped, ids, stopped, taken = 0, list[str](), False, False
    connection = await open_connection(settings, purpose="replay", hints=OPERATOR_HINTS)
    try:
        with translated():
            through = (await connection.fetchrow(_SQL["progress"], action))["through"]
        rows = (row for batch in batches for row in batch.to_pylist() if row["seq"] > through)
        due = time.monotonic()
        while part := list(islice(rows, min(_BATCH_MAX, per_second))):
            await asyncio.sleep(due - time.monotonic())
            due = time.monotonic() + len(part) / per_second
            with translated():
                done = await _batch(connection, action, part, after=through)
                if done is None:
                    stopped = (await connection.fetchrow(_SQL["progress"], action))["stopped"]
                    taken = not stopped
                    break
            through = part[-1]["seq"]
            missed = [row["id"] for row in part if row["id"] not in done]
            skipped, ids = skipped + len(missed), [*ids, *missed][:_NAMED_MAX]
    finally:
        connection.terminate()
    texts = pa.array([ids], pa.list_(pa.string()))
    return pa.RecordBatch.from_pydict(
        {"skipped": [skipped], "ids": texts, "stopped": [stopped], "taken": [taken]}
    )


async def _batch(
    connection: Any, action: int | None, rows: Sequence[Mapping[str, Any]], *, after: int
) -> frozenset[str] | None:
    """Put events back in one transaction; return their IDs, or None if the record is not at ``after``."""
    here = [row["id"] for row in rows if not row["archived"]]
    gone = [row for row in rows if row["archived"]]
    done: list[Any] = []
    async with connection.transaction():
        if not await connection.fetch(_SQL["advance"], action, after, rows[-1]["seq"]):
            return None
        if here:
            done += await connection.fetch(_SQL["requeue"], here)
        if gone:
            done += await connection.fetch(
                _SQL["restore"], *([row[name] for row in gone] for name in _RESTORED)
            )
        await connection.execute(_SQL["count"], action, len(done))
    return frozenset(row["id"] for row in done)
