"""Reads all that is compared, each source once, in the order that makes the comparison fair."""

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
    ask_bounds,
    ask_positions,
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
from sea_mq_worker.pipeline.snapshot import snapshot
from sea_mq_worker.settings import ConsumerSettings, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """A service's inbox, and how far its consumers were just before it was read.

    Attributes:
        context: the service's.
        at: the database's clock when it was read.
        rows: of ``inbox_messages``.
        pruned_before: rows processed before this may be gone; None: no prune.
    """

    context: str
    positions: Sequence[ConsumerPosition]
    at: datetime
    rows: DataFrame
    pruned_before: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All that is compared.

    Attributes:
        inboxes: the own one first.
        bounds: of each stream, its first sequence as of after the reading.
        messages: of each stream.
        events: rows of outbox and archive.
        audit: of the own schema.
        rows: how many were read of what.
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
    """Read in the direction opposite to that in which an event travels.

    So whatever is seen at one place was at the places before it when they were read: what is in flight looks
    pending, and never lost. Consumers' positions come first of all, then inboxes, streams, outbox and
    archive. What moves to the lake meanwhile is found there, since the lake is read after the table or stream
    that it leaves.

    Args:
        spark: the session.
        settings: the own ones.
        lake: None: there is none.
        receivers: other services that consume the own stream.
        limits: of time.
        held: keeps snapshots and rows until it is closed.
        on_progress: is told what was read.
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
        name: with_lake(spark, prints, now, lake=lake, limits=limits, keep=reading.keep(f"bronze {name}"))
        for name, (now, prints) in streamed.items()
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
            count = kept.count()
            self.on_progress(f"{name}: read {count}")
            return kept, count

        return keep

    def inbox(self, config: str | None, settings: Settings, consumers: Sequence[ConsumerSettings]) -> Inbox:
        positions = ask_positions(settings, consumers)
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
        before = ask_bounds(settings, name, self.limits.since)
        prints, self.rows[name] = read_stream(self.spark, before, self.keep(name))
        after = ask_bounds(settings, name).state
        if after.created != before.state.created or after.last_seq < before.state.last_seq:
            raise DataLossError(
                f"stream {name} was made again or set back while it was read: run reconcile again, once the "
                "broker is settled"
            )
        state = replace(before.state, first_seq=after.first_seq, first_time=after.first_time)
        return replace(before, state=state), (prints, self.rows[name])
