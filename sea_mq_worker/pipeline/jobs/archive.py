"""Move published events from the outbox to the lake.

Under one snapshot, an insert-only MERGE copies the events that the lake lacks. Executors then delete from the
outbox each event whose digest, as PostgreSQL computes it, equals that of the committed row of the lake. Days
are combined into steps of some million events, so that no snapshot is old.

No progress is stored. A run that was killed is repeated: what the lake has is not copied again, and what the
outbox no longer has is not deleted again. An event that is replayed meanwhile stays.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as fn

from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.lake import ARCHIVE, Lake
from sea_mq_worker.pipeline.postgres import (
    FIRST_TIME,
    LAST_TIME,
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
from sea_mq_worker.postgres.partitions import DROP_LEAF, LEAVES, for_leaf, leaf_of
from sea_mq_worker.postgres.pool import WORKER_HINTS
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings

PER_SECOND = 20_000

_STEP_ROWS = 5_000_000
_DELETING_TASKS = 2
"""Tasks that delete, each at its share of the pace; the audit's record admits one of them at a time."""
_DELETE_ROWS = 2000
"""Cap on the events that one transaction deletes, which takes the server some ten milliseconds."""
_DELETE_BYTES = 8 * 2**20
"""Cap on the content of these events in bytes, because the server computes digests of it."""

_KINDS = dict(column.split() for column in ARCHIVE.ddl.split(", "))
_ADDED = ("batch", "context", "date")
"""Columns of the lake that are not in the outbox."""
KEPT = [name for name in _KINDS if name not in _ADDED]
"""Columns of the outbox that the lake stores."""
_TIMES = ", ".join(name for name in KEPT if _KINDS[name] == "TIMESTAMP")
_SQL = load_queries("pipeline_archive")
_Step: TypeAlias = tuple[datetime, datetime]
"""The first and the last time of publication of the events that are moved together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """Result of an archive.

    Attributes:
        found: events to archive.
        unfit: events that stay in the outbox, because one of their times is outside the years 2 to 9998.
        archived: events of these that were copied to the lake; an earlier run may have copied the others.
        deleted: events deleted from the outbox.
        stayed: archived events that stay in the outbox, because they were replayed or changed meanwhile.
        dropped: names of dropped partitions, which were over and then empty.
        dry_run: whether ``found`` events would be archived, and nothing was changed.
    """

    found: int = 0
    unfit: int = 0
    archived: int = 0
    deleted: int = 0
    stayed: int = 0
    dropped: tuple[str, ...] = ()
    dry_run: bool = False


def archivable(settings: Settings, *, before: datetime) -> ArchiveResult:
    """Count the events that an archive would find, and change nothing."""
    with snapshot(settings) as held:
        _, counted = _planned(held, before)
    return replace(counted, dry_run=True)


def archive(
    spark: SparkSession,
    settings: Settings,
    *,
    lake: str,
    before: datetime,
    actor: str,
    reason: str,
    per_second: int = PER_SECOND,
    on_progress: Callable[[str], None] = print,
) -> ArchiveResult:
    """Move the events published before a time to the lake.

    Args:
        spark: the session; its executors reach the database, and have this package.
        settings: the database and the context.
        lake: the lake's address.
        before: archive events published before this time, which must be in the past.
        actor: the operator, for the audit.
        reason: the operator's reason, for the audit.
        per_second: approximate maximum of deleted events a second, to spare the worker.
        on_progress: called after each step.

    Raises:
        DataLossError: the lake differs from the outbox; the events that differ stay in both.
        PipelineError: another archive is running, or the lake cannot be written.
        UnavailableError: PostgreSQL is unavailable; run the job again.
        ContractError: PostgreSQL does not meet the worker's requirements.
    """
    if before > datetime.now(UTC):
        raise PipelineError("`before` must be in the past; choose an earlier time")
    with configured(spark), exclusive(settings, purpose="archive") as locked:
        target = Lake(spark, lake)
        target.create(ARCHIVE)
        with snapshot(settings) as held:
            steps, result = _planned(held, before)
        if result.found:
            selection = json.dumps({"before": before.isoformat(), "lake": target.address})
            [[action]] = locked.rows(_SQL["begin"], actor, reason, selection)
            for step in steps:
                locked.rows("SELECT 1 AS the_lock_is_held")
                copied = _copy(target, settings, step)
                on_progress(
                    f"{copied:,} events copied to the lake, published up to {step[1]:%Y-%m-%d %H:%M} UTC"
                )
                locked.rows("SELECT 1 AS the_lock_is_held")
                stayed = _delete(target, settings, step, action, per_second)
                result = replace(result, archived=result.archived + copied, stayed=result.stayed + stayed)
                on_progress(f"they are deleted from the outbox; {stayed:,} stay")
            [[deleted]] = locked.rows(_SQL["finish"], action, "done")
            result = replace(result, deleted=deleted)
        return replace(result, dropped=tuple(_drop_empty(locked, before, actor, reason, on_progress)))


def _planned(held: Snapshot, before: datetime) -> tuple[list[_Step], ArchiveResult]:
    """Combine days into steps, and count the events."""
    days = held.rows(_SQL["days"], before, FIRST_TIME, LAST_TIME)
    steps: list[_Step] = []
    room = 0
    for day in filter(lambda day: day["fit"], days):
        if steps and day["fit"] <= room:
            steps[-1] = (steps[-1][0], day["last"])
        else:
            steps.append((day["first"], day["last"]))
            room = _STEP_ROWS
        room -= day["fit"]
    found, unfit = (sum(day[name] for day in days) for name in ("fit", "unfit"))
    return steps, ArchiveResult(found=found, unfit=unfit)


def _copy(target: Lake, settings: Settings, step: _Step) -> int:
    """Insert the events of a step that the lake lacks; return how many."""
    where = (
        f"state = 'PUBLISHED' AND published_at BETWEEN {literal(step[0])} AND {literal(step[1])}"
        f" AND LEAST({_TIMES}) > {literal(FIRST_TIME)} AND GREATEST({_TIMES}) < {literal(LAST_TIME)}"
    )
    # Literal bounds let Delta skip the files of other times; their few keys are sent to all executors.
    of_step = _of_step(settings, step, "t.")
    with snapshot(settings) as held:
        rows = held.read(target.spark, "outbox_events", KEPT, where)
        added = {
            "batch": fn.lit(None).cast("bigint"),
            "context": fn.lit(settings.context),
            "date": fn.to_date("published_at"),
        }
        return target.insert_new(
            ARCHIVE.name,
            rows.withColumns(added),
            f"t.id = s.id AND t.published_at = s.published_at AND t.date = s.date AND {of_step}",
        )


def _of_step(settings: Settings, step: _Step, table: str = "") -> str:
    """Return Spark's condition for the lake's rows of a step."""
    context = settings.context.replace("\\", "\\\\").replace("'", "\\'")
    first, last = (moment.astimezone(UTC) for moment in step)
    within = (
        f"{table}date BETWEEN DATE '{first:%Y-%m-%d}' AND DATE '{last:%Y-%m-%d}'",
        f"{table}published_at BETWEEN TIMESTAMP '{first.isoformat()}' AND TIMESTAMP '{last.isoformat()}'",
    )
    return " AND ".join((f"{table}context = '{context}'", *within))


def _delete(target: Lake, settings: Settings, step: _Step, action: int, per_second: int) -> int:
    """Delete the events of a step that equal the lake's; return the number of those that stay.

    Raises:
        DataLossError: the lake has another content of an event with the same time of publication.
    """
    size = fn.octet_length(fn.concat_ws("", "payload", "headers", "metadata"))
    rows = target.read(ARCHIVE.name).where(_of_step(settings, step))
    keys = rows.select("id", "published_at", digest().alias("digest"), size.alias("bytes"))
    share = max(1, per_second // _DELETING_TASKS)
    own = with_password(settings)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner() as runner:
            yield from runner.run(_delete_all(own, batches, action, share))

    counts = keys.repartition(_DELETING_TASKS).mapInArrow(run, "stayed BIGINT, altered STRING")
    [[stayed, altered, one]] = counts.agg(fn.sum("stayed"), fn.count("altered"), fn.min("altered")).collect()
    if altered:
        raise DataLossError(
            f"{target.address}: the archive's row of the event {one} (and perhaps of others) differs from the"
            " outbox, although it has the same time of publication; such events stay in both. Find what has"
            " changed either; then delete the rows from the lake's table, and run again"
        )
    return int(stayed or 0)


async def _delete_all(
    settings: Settings, batches: Iterator[pa.RecordBatch], action: int, per_second: int
) -> list[pa.RecordBatch]:
    """Delete in short transactions, in an executor; yield counts, and an altered event of each batch."""
    stayed, altered = 0, None
    connection = await open_connection(settings, purpose="archive", hints=WORKER_HINTS)
    try:
        due = time.monotonic()
        for part in (part for batch in batches for part in _parts(batch, min(_DELETE_ROWS, per_second))):
            await asyncio.sleep(due - time.monotonic())
            due = time.monotonic() + part.num_rows / per_second
            keys = [part.column(name).to_pylist() for name in ("id", "published_at", "digest")]
            with translated():
                row = await connection.fetchrow(_SQL["delete"], *keys, action)
                stayed += row["stayed"]
                if row["stayed"] and not altered:
                    altered = await connection.fetchval(_SQL["altered"], *keys)
    finally:
        connection.terminate()
    return [pa.RecordBatch.from_pydict({"stayed": [stayed], "altered": pa.array([altered], pa.string())})]


def _parts(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts of at most ``rows`` rows and _DELETE_BYTES, or one row."""
    start, room = 0, _DELETE_BYTES
    for at, size in enumerate(batch.column("bytes").to_pylist()):
        if at > start and (at - start == rows or size > room):
            yield batch.slice(start, at - start)
            start, room = at, _DELETE_BYTES
        room -= size
    if start < batch.num_rows:
        yield batch.slice(start)


def digest() -> Column:
    """Return the digest of the archive's row that ``pipeline_archive.sql`` computes of the outbox's."""

    def parts(name: str) -> tuple[Column, ...]:
        if _KINDS[name] == "TIMESTAMP":
            return fn.unix_micros(name).cast("string"), fn.lit(";")
        if name in {"id", "correlation_id", "causation_id"} or _KINDS[name] != "STRING":
            return fn.col(name).cast("string"), fn.lit(";")
        return fn.char_length(name).cast("string"), fn.lit(":"), fn.col(name)

    return fn.md5(fn.encode(fn.concat_ws("", *(part for name in KEPT for part in parts(name))), "UTF-8"))


def _drop_empty(
    locked: Session, before: datetime, actor: str, reason: str, on_progress: Callable[[str], None]
) -> Iterator[str]:
    """Drop the partitions whose range of IDs is over and that are empty, and yield their names."""
    for leaf in map(leaf_of, locked.rows(LEAVES, "outbox_events")):
        if not leaf.is_over(before):
            continue
        # What is added to an empty partition now is not published before a past time, and keeps it.
        [[is_empty]] = locked.rows(for_leaf(_SQL["is_empty"], "outbox_events", leaf.name))
        if not is_empty:
            continue
        selection = json.dumps({"before": before.isoformat()})
        [[action]] = locked.rows(_SQL["begin"], actor, reason, selection)
        [row] = locked.rows(DROP_LEAF, leaf.name, before, action)
        locked.rows(_SQL["finish"], action, "done" if row["dropped"] else "refused")
        if row["dropped"]:
            yield leaf.name
        else:
            on_progress(f"the empty partition {leaf.name} is kept: {row['reason']}")


@contextmanager
def exclusive(settings: Settings, *, purpose: str) -> Iterator[Session]:
    """Open a session whose lock keeps archives and erasures of one outbox apart; it ends with the session.

    Raises:
        PipelineError: another session has the lock.
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: PostgreSQL refuses the user, its version is not supported, or the tables are another
            context's.
    """
    with session(settings, purpose=purpose, hints=WORKER_HINTS) as locked:
        [[is_locked]] = locked.rows(_SQL["lock"])
        if not is_locked:
            raise PipelineError(
                "another archive or erasure is running on this outbox; wait until it ends (pg_stat_activity"
                " shows it as 'sea_mq_worker archive' or 'sea_mq_worker erase')"
            )
        yield locked
