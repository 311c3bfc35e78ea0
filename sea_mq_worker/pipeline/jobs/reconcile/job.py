"""Prove ID by ID that each event of the outbox reached the stream, and each message the inbox."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.job_run import job_run, lake_datasets, stream_datasets, table_datasets
from sea_mq_worker.pipeline.jobs.reconcile.exchange import PACKED
from sea_mq_worker.pipeline.jobs.reconcile.judging import FOUND, TROUBLE, Judge
from sea_mq_worker.pipeline.jobs.reconcile.lost_events import put_back, restore_signs
from sea_mq_worker.pipeline.jobs.reconcile.order import JudgeOrder
from sea_mq_worker.pipeline.jobs.reconcile.result import ReconcileRequest, Reconciliation, Verdict
from sea_mq_worker.pipeline.jobs.reconcile.rows import INBOX
from sea_mq_worker.pipeline.jobs.reconcile.sources import read_sources
from sea_mq_worker.pipeline.jobs.reconcile.summary import named, summaries
from sea_mq_worker.pipeline.lake import schemas
from sea_mq_worker.pipeline.session import described
from sea_mq_worker.settings import Settings


def reconcile(
    spark: SparkSession, settings: Settings, wanted: ReconcileRequest, *, on_progress: Callable[[str], None]
) -> Reconciliation:
    """Judge each ID at each hop; see ``Verdict``.

    Each source is read once, and each table as of one moment.

    Raises:
        PipelineError: the output folder already exists, or the disk for temporary files is too small.
        DataLossError: a stream was recreated or restored during the read.
        StoreUnavailableError: PostgreSQL is unavailable.
        BrokerUnavailableError: NATS is unavailable.
        ContractError: a stream, a consumer or a table is missing.
    """
    if wanted.out and Path(wanted.out).exists():
        raise PipelineError(f"{wanted.out} already exists: name a new folder, so that results do not mix")
    reads = (
        *table_datasets(settings, "outbox_events", "inbox_messages"),
        *stream_datasets(settings, [settings.stream, *(consumer.stream for consumer in settings.consumers)]),
        *lake_datasets(wanted.lake, schemas.ARCHIVE, schemas.BRONZE),
    )
    with job_run(spark, settings, "reconcile", reads=reads, writes=()) as session, ExitStack() as held:
        judge, packed = read_sources(session, settings, wanted, held=held, on_progress=on_progress)
        with described(session, "reconcile: judge"):
            counts, troubled = _judged(judge, packed, held)
            hops = summaries(judge.hops, counts, troubled)
        for hop in hops:
            on_progress(f"{hop.name}: judged {hop.ids}")
        if wanted.out:
            named(troubled, judge.hops).coalesce(1).write.json(wanted.out)
        notes, requeued = _notes(judge), None
        if Verdict.MISSING_IN_STREAM in hops[0].verdicts:
            lost = troubled.where(F.col("findings").bitwiseAND(Verdict.MISSING_IN_STREAM.bit) != 0)
            lost = lost.where("hop = 0")
            notes += restore_signs(lost, judge.own)
            if wanted.requeue:
                requeued = put_back(settings, lost, wanted.requeue, on_progress)
        return Reconciliation(
            since=wanted.since,
            until=wanted.until,
            rows=_rows(judge, counts),
            hops=hops,
            notes=notes,
            requeued=requeued,
        )


def _judged(judge: Judge, packed: DataFrame, held: ExitStack) -> tuple[list[Row], DataFrame]:
    """Return counts, and all IDs with another verdict than delivered; see ``FOUND`` and ``TROUBLE``."""
    gathered = packed.repartition(judge.buckets, "bucket")
    found = gathered.mapInArrow(judge, from_arrow_schema(FOUND)).persist(StorageLevel.DISK_ONLY)
    held.callback(found.unpersist)
    groups = found.where("counted IS NOT NULL").groupBy("counted", "source", "hop", "seconds")
    counts = groups.agg(F.sum("rows").alias("rows")).collect()
    keyed = found.where("packed IS NOT NULL").select(*PACKED.names).repartition(judge.buckets, "bucket")
    ordered = keyed.mapInArrow(JudgeOrder(judge.audit.replays), from_arrow_schema(TROUBLE))
    troubled = found.where("id IS NOT NULL").select(*TROUBLE.names).unionAll(ordered)
    troubled = troubled.persist(StorageLevel.DISK_ONLY)
    held.callback(troubled.unpersist)
    return counts, troubled


def _rows(judge: Judge, counts: Sequence[Row]) -> dict[str, int]:
    """Return the number of rows read from each source."""
    lake = ("archive", *(f"bronze {name}" for name in judge.streams)) if judge.wanted.lake else ()
    read = {row.source: row.rows for row in counts if row.counted == "rows"}
    return dict.fromkeys((*judge.streams, INBOX, "outbox", *lake), 0) | read


def _notes(judge: Judge) -> list[str]:
    """Return notes on limits of the result, and on consumers that are ahead of their stream."""
    notes = []
    for one in judge.consumers:
        last = judge.streams[one.stream].last_seq
        if one.ack_floor > last:
            notes.append(
                f"{one.name} has settled sequence {one.ack_floor}, but {one.stream} ends at {last}: "
                "the stream was restored to an older state, and the consumer skips up to that sequence"
            )
    archived = judge.audit.archived_before
    if judge.wanted.lake is None and archived:
        notes.append(
            f"rows published before {archived.isoformat()} were archived: use --lake to compare them"
        )
    return notes
