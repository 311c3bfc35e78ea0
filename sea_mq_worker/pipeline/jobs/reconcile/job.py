"""Prove ID by ID that each event of the outbox reached the stream, and each message the inbox."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.adapters.nats.server_info import StreamInfo
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.job_run import job_run, lake_datasets, stream_datasets, table_datasets
from sea_mq_worker.pipeline.jobs.reconcile.judging import further_findings, hop_names, judge, with_findings
from sea_mq_worker.pipeline.jobs.reconcile.lost_events import put_back, restore_signs
from sea_mq_worker.pipeline.jobs.reconcile.request import ReconcileRequest
from sea_mq_worker.pipeline.jobs.reconcile.result import Compared, Reconciliation
from sea_mq_worker.pipeline.jobs.reconcile.sources import Sources, read_sources
from sea_mq_worker.pipeline.jobs.reconcile.summary import summaries, troubled
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, BRONZE
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
        *lake_datasets(wanted.lake, ARCHIVE, BRONZE),
    )
    with job_run(spark, settings, "reconcile", reads=reads, writes=()) as session, ExitStack() as held:
        sources = read_sources(session, settings, wanted, held=held, on_progress=on_progress)
        hops, names = _hops(sources, wanted, held), hop_names(sources)
        found, in_table = summaries(hops, names, examples=wanted.examples)
        for hop in found:
            on_progress(f"{hop.name}: judged {hop.ids}")
        if wanted.out:
            troubled(hops).coalesce(1).write.format(wanted.out_format).save(wanted.out)
        notes, requeued = _notes(sources, settings, wanted), None
        if Verdict.MISSING_IN_STREAM in found[0].verdicts:
            is_lost = F.col("findings")[0] == Verdict.MISSING_IN_STREAM.value
            lost = hops.where((F.col("hop") == names[0]) & is_lost)
            notes += restore_signs(lost, sources.streams[settings.stream])
            if wanted.requeue:
                requeued = put_back(settings, lost, wanted.requeue, on_progress)
        return Reconciliation(
            since=wanted.since,
            until=wanted.until,
            compared=[_compared(stream.state, sources.rows) for stream in sources.streams.values()],
            rows=sources.rows | {"outbox": in_table},
            hops=found,
            notes=notes,
            requeued=requeued,
        )


def _hops(sources: Sources, wanted: ReconcileRequest, held: ExitStack) -> DataFrame:
    """Return one row per ID and hop; ``held`` keeps the judged IDs on the executors' disks."""
    judged = judge(sources, wanted).persist(StorageLevel.DISK_ONLY)
    held.callback(judged.unpersist)
    further = further_findings(judged, sources.audit.replays).persist(StorageLevel.DISK_ONLY)
    held.callback(further.unpersist)
    hops = judged.select("*", F.inline("hops"))
    return hops if further.isEmpty() else with_findings(hops, further, hop_names(sources)[0])


def _compared(state: StreamInfo, rows: Mapping[str, int]) -> Compared:
    return Compared(
        stream=state.name,
        created=state.created,
        first_seq=state.first_seq,
        last_seq=state.last_seq,
        first_time=state.first_time,
        last_time=state.last_time,
        streamed=rows[state.name],
        landed=rows.get(f"bronze {state.name}", 0),
    )


def _notes(sources: Sources, settings: Settings, wanted: ReconcileRequest) -> list[str]:
    """Return notes on limits of the result, and on consumers that are ahead of their stream."""
    notes = [
        f"{inbox.context}: no consumer of this service reads {settings.stream}"
        for inbox in sources.inboxes[1:]
        if not inbox.consumers
    ]
    for one in (consumer for inbox in sources.inboxes for consumer in inbox.consumers):
        last = sources.streams[one.stream].state.last_seq
        if one.ack_floor > last:
            notes.append(
                f"{one.name} has settled sequence {one.ack_floor}, but {one.stream} ends at {last}: "
                "the stream was restored to an older state, and the consumer skips up to that sequence"
            )
    archived = sources.audit.archived_before
    if wanted.lake is None and archived:
        notes.append(
            f"rows published before {archived.isoformat()} were archived: use --lake to compare them"
        )
    return notes
