"""Read all compared sources once, in an order in which events in transit never look lost."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from sea_mq_worker.pipeline.errors import DataLossError
from sea_mq_worker.pipeline.executor_settings import config_of
from sea_mq_worker.pipeline.jobs.reconcile.broker_state import (
    Audit,
    ConsumerPosition,
    StreamBounds,
    query_bounds,
    query_positions,
    read_audit,
)
from sea_mq_worker.pipeline.jobs.reconcile.outbox import Limits
from sea_mq_worker.pipeline.jobs.reconcile.reading import (
    Keep,
    Messages,
    read_events,
    read_received,
    read_stream,
    with_archive,
    with_lake,
)
from sea_mq_worker.pipeline.jobs.reconcile.receiver import Receiver
from sea_mq_worker.pipeline.session import described
from sea_mq_worker.pipeline.snapshot import snapshot
from sea_mq_worker.settings import ConsumerSettings, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """A service's inbox, and the progress of its consumers just before the read.

    Attributes:
        context: the service's context.
        positions: the progress of its consumers.
        at: the database's time of the read.
        rows: rows of ``inbox_messages``.
        pruned_before: rows processed before this time may have been pruned; None: no prune.
    """

    context: str
    positions: Sequence[ConsumerPosition]
    at: datetime
    rows: DataFrame
    pruned_before: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All compared data.

    Attributes:
        inboxes: this service's inbox first, then the receivers'.
        bounds: bounds of each stream, with its first sequence after the read.
        messages: messages of each stream.
        events: rows of outbox and archive.
        audit: operators' actions in this service's schema.
        rows: number of rows read from each source.
    """

    inboxes: Sequence[Inbox]
    bounds: dict[str, StreamBounds]
    messages: dict[str, Messages]
    events: DataFrame
    audit: Audit
    rows: dict[str, int]


def read_sources(
    spark: SparkSession,
    settings: Settings,
    *,
    lake: str | None,
    receivers: Sequence[Receiver],
    limits: Limits,
    held: ExitStack,
    on_progress: Callable[[str], None],
) -> Sources:
    """Read the sources against the direction in which an event travels.

    An event found in one source had then already reached the sources before it when those are read. Events in
    transit therefore look pending, and never lost. The order of reading is: consumers' positions, inboxes,
    streams, outbox, archive. Events that move to the lake in the meantime are found there, because the lake
    is read last.

    Args:
        spark: the session.
        settings: settings of this service.
        lake: the lake's address; None: no lake.
        receivers: other services that consume this service's stream.
        limits: limits of time.
        held: holds snapshots and persisted rows until it is closed.
        on_progress: called with a description of each read.
    """
    rows: dict[str, int] = {}
    reading = _Reading(spark, limits, held, rows, on_progress)
    inboxes = [reading.inbox(None, settings, settings.consumers)]
    for each in receivers:
        ours = [consumer for consumer in each.settings.consumers if consumer.stream == settings.stream]
        inboxes.append(reading.inbox(each.config, each.settings, ours))
    names = [settings.stream, *(one.stream for inbox in inboxes for one in inbox.positions)]
    streamed = {name: reading.stream(settings, name) for name in dict.fromkeys(names)}
    bounds = {name: now for name, (now, _) in streamed.items()}
    moment = held.enter_context(snapshot(settings))
    table, rows["outbox"] = read_events(spark, settings, moment, limits, reading.keep("outbox"))
    events, archived = with_archive(
        spark, settings, table, lake=lake, limits=limits, keep=reading.keep("archive")
    )
    messages = {
        name: with_lake(
            spark, fingerprints, now, lake=lake, limits=limits, keep=reading.keep(f"bronze {name}")
        )
        for name, (now, fingerprints) in streamed.items()
    }
    if lake is not None:
        rows |= {"archive": archived} | {f"bronze {name}": found.landed for name, found in messages.items()}
    return Sources(
        inboxes=inboxes,
        bounds=bounds,
        messages=messages,
        events=events,
        audit=read_audit(moment),
        rows=rows,
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    spark: SparkSession
    limits: Limits
    held: ExitStack
    rows: dict[str, int]
    on_progress: Callable[[str], None]

    def keep(self, name: str) -> Keep:
        def keep(frame: DataFrame) -> tuple[DataFrame, int]:
            kept = frame.persist(StorageLevel.DISK_ONLY)
            self.held.callback(kept.unpersist)
            with described(self.spark, f"reconcile: read {name}"):
                count = kept.count()
            self.on_progress(f"{name}: read {count}")
            return kept, count

        return keep

    def inbox(self, config: str | None, settings: Settings, consumers: Sequence[ConsumerSettings]) -> Inbox:
        positions = query_positions(settings, consumers)
        moment = self.held.enter_context(snapshot(settings))
        name = f"inbox {settings.context}"
        with config_of(config):
            received, self.rows[name] = read_received(self.spark, moment, self.limits, self.keep(name))
        return Inbox(
            context=settings.context,
            positions=positions,
            at=moment.at,
            rows=received,
            pruned_before=read_audit(moment).inbox_pruned_before,
        )

    def stream(self, settings: Settings, name: str) -> tuple[StreamBounds, tuple[DataFrame, int]]:
        before = query_bounds(settings, name, self.limits.since)
        fingerprints, self.rows[name] = read_stream(self.spark, before, self.keep(name))
        after = query_bounds(settings, name).state
        if after.created != before.state.created or after.last_seq < before.state.last_seq:
            raise DataLossError(
                f"stream {name} was recreated or restored during the read: run reconcile again when the "
                "broker is stable"
            )
        state = replace(before.state, first_seq=after.first_seq, first_time=after.first_time)
        return replace(before, state=state), (fingerprints, self.rows[name])
