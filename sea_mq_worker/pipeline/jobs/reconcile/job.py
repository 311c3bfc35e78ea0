"""Prove ID by ID that each event of the outbox reached the stream, and each message the inbox."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.reconcile.judging import (
    InboxHop,
    OutboxHop,
    by_id,
    further_findings,
    judge,
    with_findings,
)
from sea_mq_worker.pipeline.jobs.reconcile.lost_events import put_back, restore_signs
from sea_mq_worker.pipeline.jobs.reconcile.request import ReconcileRequest
from sea_mq_worker.pipeline.jobs.reconcile.result import Reconciliation
from sea_mq_worker.pipeline.jobs.reconcile.sources import Sources, read_sources
from sea_mq_worker.pipeline.jobs.reconcile.summary import summaries, troubled
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict
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
    with described(spark, "reconcile: judge"), ExitStack() as held:
        sources = read_sources(spark, settings, wanted, held=held, on_progress=on_progress)
        own = sources.streams[settings.stream]
        outbox = OutboxHop(
            stream=own,
            asked_at=sources.inboxes[0].at,
            pruned_before=_gone_before(sources, wanted),
            replays=sources.audit.replays,
        )
        inboxes = [
            InboxHop(inbox=inbox, number=number, position=one, stream=sources.streams[one.stream])
            for number, inbox in enumerate(sources.inboxes)
            for one in inbox.positions
        ]
        rows = by_id(
            sources.events, list(sources.streams.values()), [inbox.rows for inbox in sources.inboxes]
        )
        judged = judge(rows, outbox, inboxes, wanted).persist(StorageLevel.DISK_ONLY)
        held.callback(judged.unpersist)
        further = further_findings(judged, sources.audit.replays).persist(StorageLevel.DISK_ONLY)
        held.callback(further.unpersist)
        hops = judged.select("*", F.inline("hops"))
        if not further.isEmpty():
            hops = with_findings(hops, further, outbox.name)
        found, in_table = summaries(
            hops, [outbox.name, *(hop.name for hop in inboxes)], examples=wanted.examples
        )
        for hop in found:
            on_progress(f"{hop.name}: judged {hop.ids}")
        if wanted.out:
            troubled(hops).coalesce(1).write.format(wanted.out_format).save(wanted.out)
        notes, requeued = _notes(sources, settings, wanted), None
        if Verdict.MISSING_IN_STREAM in found[0].verdicts:
            is_lost = F.col("findings")[0] == Verdict.MISSING_IN_STREAM.value
            lost = hops.where((F.col("hop") == outbox.name) & is_lost)
            notes += restore_signs(lost, own)
            if wanted.requeue:
                requeued = put_back(settings, lost, wanted.requeue, on_progress)
        return Reconciliation(
            since=wanted.since,
            until=wanted.until,
            compared=[stream.compared for stream in sources.streams.values()],
            rows=sources.rows | {"outbox": in_table},
            hops=found,
            notes=notes,
            requeued=requeued,
        )


def _gone_before(sources: Sources, wanted: ReconcileRequest) -> datetime | None:
    """Return the time before which rows may be missing because an operator removed them."""
    audit = sources.audit
    limits = (audit.outbox_pruned_before, None if wanted.lake else audit.archived_before)
    return max((limit for limit in limits if limit), default=None)


def _notes(sources: Sources, settings: Settings, wanted: ReconcileRequest) -> list[str]:
    """Return notes on limits of the result, and on consumers that are ahead of their stream."""
    notes = [
        f"{inbox.context}: no consumer of this service reads {settings.stream}"
        for inbox in sources.inboxes[1:]
        if not inbox.positions
    ]
    for one in (position for inbox in sources.inboxes for position in inbox.positions):
        last = sources.streams[one.stream].compared.last_seq
        if one.settled_seq > last:
            notes.append(
                f"{one.durable} has settled sequence {one.settled_seq}, but {one.stream} ends at {last}: "
                "the stream was restored to an older state, and the consumer skips up to that sequence"
            )
    archived = sources.audit.archived_before
    if wanted.lake is None and archived:
        notes.append(
            f"rows published before {archived.isoformat()} were archived: use --lake to compare them"
        )
    return notes
