"""Prove ID by ID that each event of the outbox reached the stream, and each message the inbox."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.reconcile.broker_state import ConsumerPosition
from sea_mq_worker.pipeline.jobs.reconcile.inbox import ConsumerFacts, covered, covered_copies, judge_inbox
from sea_mq_worker.pipeline.jobs.reconcile.outbox import (
    Limits,
    StreamEvidence,
    copies_by_id,
    judge_stream,
    matched,
)
from sea_mq_worker.pipeline.jobs.reconcile.reading import stored_within
from sea_mq_worker.pipeline.jobs.reconcile.receiver import Receiver
from sea_mq_worker.pipeline.jobs.reconcile.restore_signs import Requeue, lost, put_back, restore_signs
from sea_mq_worker.pipeline.jobs.reconcile.result import (
    Compared,
    Reconciliation,
    Requeued,
    summary,
    troubled,
)
from sea_mq_worker.pipeline.jobs.reconcile.sources import Inbox, Sources, read_sources
from sea_mq_worker.pipeline.jobs.reconcile.verdicts import Verdict
from sea_mq_worker.pipeline.session import described
from sea_mq_worker.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest:
    """Scope and output of a comparison.

    Attributes:
        limits: limits of time.
        lake: the lake with archive and bronze; None: only tables and streams.
        receivers: other services that consume this service's stream.
        examples: number of IDs to return for each verdict.
        out: a new folder for all IDs with another verdict than delivered; None: no files.
        out_format: format of these files.
        requeue: put back the events that the stream lost; None: change nothing.
    """

    limits: Limits = field(default_factory=Limits)
    lake: str | None = None
    receivers: Sequence[Receiver] = ()
    examples: int = 20
    out: str | None = None
    out_format: Literal["json", "parquet"] = "json"
    requeue: Requeue | None = None


def reconcile(
    spark: SparkSession, settings: Settings, wanted: ReconcileRequest, *, on_progress: Callable[[str], None]
) -> Reconciliation:
    """Judge each ID at each hop; see ``Verdict``.

    Each source is read once, and each table as of one moment.

    Raises:
        PipelineError: the output folder already exists.
        DataLossError: a stream was recreated or restored during the read.
        StoreUnavailableError: PostgreSQL is unavailable.
        BrokerUnavailableError: NATS is unavailable.
        ContractError: a stream, a consumer or a table is missing.
    """
    if wanted.out and Path(wanted.out).exists():
        raise PipelineError(f"{wanted.out} already exists: name a new folder, so that results do not mix")
    with described(spark, "reconcile: judge"), ExitStack() as held:
        sources = read_sources(
            spark,
            settings,
            lake=wanted.lake,
            receivers=wanted.receivers,
            limits=wanted.limits,
            held=held,
            on_progress=on_progress,
        )
        return _Judge(settings, wanted, sources, held, on_progress).all()


@dataclass(frozen=True, slots=True)
class _Judge:
    settings: Settings
    wanted: ReconcileRequest
    sources: Sources
    held: ExitStack
    on_progress: Callable[[str], None]

    def all(self) -> Reconciliation:
        own = self._outbox()
        hops = {f"outbox -> {self.settings.stream}": own}
        for inbox in self.sources.inboxes:
            for one in inbox.positions:
                hops[f"{one.stream} -> {inbox.context} {one.durable}"] = self._inbox(own, inbox, one)
        found = []
        for name, judged in hops.items():
            found.append(summary(name, judged, examples=self.wanted.examples))
            self.on_progress(f"{name}: judged {found[-1].ids}")
        self._write(hops)
        missing = lost(own) if Verdict.MISSING_IN_STREAM in found[0].verdicts else None
        return Reconciliation(
            since=self.wanted.limits.since,
            until=self.wanted.limits.until,
            compared=[self._compared(name) for name in self.sources.bounds],
            rows=self.sources.rows,
            hops=found,
            notes=[*self._notes(), *(self._signs(missing) if missing is not None else ())],
            requeued=self._put_back(missing),
        )

    def _outbox(self) -> DataFrame:
        audit = self.sources.audit
        gone = [audit.outbox_pruned_before]
        if self.wanted.lake is None:
            gone.append(audit.archived_before)
        messages = self.sources.messages[self.settings.stream].frame
        judged = judge_stream(
            self._keep(matched(self.sources.events, messages)),
            self._facts(),
            self.wanted.limits,
            replays=audit.replays,
            pruned_before=max((moment for moment in gone if moment), default=None),
        )
        return self._keep(judged.drop("content", "header_hash"))

    def _inbox(self, own: DataFrame, inbox: Inbox, position: ConsumerPosition) -> DataFrame:
        consumer = self._consumer(inbox, position)
        limits = self.wanted.limits
        if position.stream == self.settings.stream:
            expected = covered_copies(own, consumer)
        else:
            messages = stored_within(self.sources.messages[position.stream].frame, limits)
            expected = copies_by_id(covered(messages, consumer))
            expected = expected.withColumn("before", F.lit(None).cast("string"))
        return self._keep(
            judge_inbox(expected, inbox.rows, consumer, limits, pruned_before=inbox.pruned_before)
        )

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self.held.callback(kept.unpersist)
        return kept

    def _facts(self) -> StreamEvidence:
        bounds = self.sources.bounds[self.settings.stream]
        return StreamEvidence(
            stream=bounds.state.name,
            created=datetime.fromisoformat(bounds.state.created),
            first_seq=bounds.state.first_seq,
            last_seq=bounds.state.last_seq,
            first_time=bounds.state.first_time,
            asked_at=self.sources.inboxes[0].at,
            max_age_seconds=bounds.max_age_seconds,
            drops=bounds.drops,
        )

    def _consumer(self, inbox: Inbox, position: ConsumerPosition) -> ConsumerFacts:
        current = self.sources.messages[position.stream].current
        return ConsumerFacts(
            stream=position.stream,
            durable=position.durable,
            filters=position.filters,
            start_seq=position.start_seq,
            start_time=position.start_time,
            created=position.created,
            settled=current + position.settled_seq,
            first_position=current + self.sources.bounds[position.stream].state.first_seq,
            read_at=inbox.at,
        )

    def _compared(self, name: str) -> Compared:
        state, messages = self.sources.bounds[name].state, self.sources.messages[name]
        return Compared(
            stream=name,
            created=state.created,
            first_seq=state.first_seq,
            last_seq=state.last_seq,
            first_time=state.first_time,
            last_time=state.last_time,
            streamed=messages.streamed,
            landed=messages.landed,
        )

    def _put_back(self, missing: DataFrame | None) -> Requeued | None:
        how = self.wanted.requeue
        if how is None or missing is None:
            return None
        return put_back(self.settings, missing, how, self.on_progress)

    def _signs(self, missing: DataFrame) -> list[str]:
        return restore_signs(missing, self.sources.messages[self.settings.stream], self._facts())

    def _notes(self) -> list[str]:
        """Return notes on limits of the result and on signs of a restored broker."""
        notes = [
            f"{inbox.context}: no consumer of this service reads {self.settings.stream}"
            for inbox in self.sources.inboxes[1:]
            if not inbox.positions
        ]
        positions = [one for inbox in self.sources.inboxes for one in inbox.positions]
        for one in positions:
            last = self.sources.bounds[one.stream].state.last_seq
            if one.settled_seq > last:
                notes.append(
                    f"{one.durable} has settled sequence {one.settled_seq}, but {one.stream} ends at {last}: "
                    "the stream was restored to an older state, and the consumer skips up to that sequence"
                )
        archived = self.sources.audit.archived_before
        if self.wanted.lake is None and archived:
            notes.append(
                f"rows published before {archived.isoformat()} were archived: use --lake to compare them"
            )
        return notes

    def _write(self, hops: Mapping[str, DataFrame]) -> None:
        """Write all hops into one folder, which is complete when it contains a file ``_SUCCESS``."""
        if not self.wanted.out:
            return
        all_hops: DataFrame | None = None
        for name, judged in hops.items():
            rows = troubled(judged).select(F.lit(name).alias("hop"), "*")
            all_hops = rows if all_hops is None else all_hops.unionByName(rows)
        if all_hops is not None:
            all_hops.coalesce(1).write.format(self.wanted.out_format).save(self.wanted.out)
