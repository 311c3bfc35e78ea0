"""The outbound side: outbox -> JetStream."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Self

import asyncpg

from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.operators.tables import open_tables
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from sea_mq_worker.outbox.maintenance import LeaseReaper, PartitionMaker, PeriodicTask
from sea_mq_worker.outbox.pace import MemoryBudget, Pace
from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from sea_mq_worker.outbox.publisher import OutboxPublisher
from sea_mq_worker.outbox.retry import RetryPolicy
from sea_mq_worker.outbox.search import StreamSearches
from sea_mq_worker.outbox.wakeup import PostgresWakeup
from sea_mq_worker.ports import JetStreamPublisher, LaneTurn, OutboxRepository, Wakeup
from sea_mq_worker.postgres.lane import PostgresLaneTurn
from sea_mq_worker.postgres.partitions import PARTITIONS_AHEAD_DAYS, PostgresPartitions
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.runtime.breaker import CircuitBreaker, call_when_available
from sea_mq_worker.runtime.supervisor import ExitCode, Loop
from sea_mq_worker.runtime.waiting import PollingWakeup, StoppedError, sleep_or_stop
from sea_mq_worker.settings import Settings, SettingsError
from sea_mq_worker.wiring.context import WorkerContext
from sea_mq_worker.wiring.watch import lost_event_check

# --- The end of a worker that publishes a backlog: the events that were due when it started.

_SQL = load_queries("backlog")

_SOON_SECONDS = 5.0
"""A failed event that is due again within this time is waited for."""
_COUNT_SECONDS = 600.0
"""Time limit of the count, which takes longer than the worker's statements for a hundred million events."""
_POLL_SECONDS = 0.5
_POLL_SHARE = 20.0
_PROBE_MAX_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogCounts:
    """Unpublished events of a backlog.

    Attributes:
        at: time of the count, by the database's clock.
        due: events that are due now: claimed, to be claimed, or waiting for an earlier event of their key.
        postponed: failed events that wait for their retry.
        dead: events that are DEAD.
    """

    at: datetime
    due: int
    postponed: int
    dead: int

    @property
    def left(self) -> int:
        return self.due + self.postponed + self.dead

    def __str__(self) -> str:
        return (
            f"{self.due:,} due or behind an earlier event of their key, {self.postponed:,} waiting for their "
            f"retry, {self.dead:,} DEAD"
        )


async def count_backlog(settings: Settings, *, since: datetime | None = None) -> BacklogCounts:
    """Count the unpublished events of the backlog at a time; None: now.

    Raises:
        StoreUnavailableError: PostgreSQL cannot be reached.
        ContractError: the schema has another version.
    """
    patient = settings.model_copy(update={"database_timeout_seconds": _COUNT_SECONDS})
    async with open_tables(patient, purpose="backlog") as pool:
        return BacklogCounts(**(await fetch(pool, _SQL["counts"], since))[0])


@dataclass(slots=True, kw_only=True)
class Backlog:
    """The backlog of a worker; ``is_done``: none of its events can be published now."""

    pool: asyncpg.Pool
    breaker: CircuitBreaker
    since: datetime
    hold_dead_keys: bool
    is_done: bool = False

    @classmethod
    async def open(cls, base: WorkerContext) -> Self:
        """Begin with the events that are due now."""
        pool = await base.pool("backlog")
        return cls(
            pool=pool,
            breaker=base.breaker("backlog", cap_seconds=_PROBE_MAX_SECONDS),
            since=(await fetch(pool, "SELECT now() AS at"))[0]["at"],
            hold_dead_keys=base.settings.outbox_dead_key == "hold",
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Return when no event of the backlog can be published within 5 seconds."""
        with contextlib.suppress(StoppedError):
            while not stop.is_set():
                began = time.monotonic()
                if not await call_when_available(self._is_deliverable, breaker=self.breaker, stop=stop):
                    self.is_done = True
                    return
                took = time.monotonic() - began
                await sleep_or_stop(stop, seconds=max(_POLL_SECONDS, _POLL_SHARE * took))

    async def exit_code(self, base: WorkerContext) -> ExitCode:
        """Return the code with which a worker exits whose loops have ended; log the events that are left.

        Raises:
            StoreUnavailableError: PostgreSQL cannot be reached.
        """
        if not self.is_done:
            return stopped_early(base)
        counts = await count_backlog(base.settings, since=self.since)
        return _left(base, f"left: {counts}: run `outbox summary`") if counts.left else ExitCode.DONE

    async def _is_deliverable(self) -> bool:
        rows = await fetch(self.pool, _SQL["is_deliverable"], self.since, _SOON_SECONDS, self.hold_dead_keys)
        return bool(rows[0]["is_deliverable"])


def stopped_early(base: WorkerContext) -> ExitCode:
    """Return the code of a worker that was stopped with events of its backlog unpublished."""
    return _left(base, "the worker was stopped before all events were published: run it again")


def _left(base: WorkerContext, text: str) -> ExitCode:
    base.events.emit("backlog_left", text=text)
    return ExitCode.FAILED


_BATCH_BYTES = 8 * 2**20
"""Most bytes of a claim, headers included; a larger event is claimed alone."""
_LINGER_SECONDS = 0.005
"""Pause between two claims in which events gather."""
_AGE_MAX_SECONDS = 604_800.0
"""An event that still fails so long after its first attempt is DEAD."""
_REAP_SECONDS_MAX = 20.0
_REAP_DELAY_SECONDS = 64.0
"""Cap on the delay after an expired lease."""
_PARTITIONS_SECONDS = 3600.0


async def outbound_loops(base: WorkerContext, *, stands_by: bool = True) -> dict[str, Loop]:
    """Build one lane for events with an ordering key, and one for events without.

    ``stands_by``: while another worker serves the lane with keys, this one does not.
    """
    s = base.settings
    pool = await base.pool("outbox")
    connection = await base.nats("outbox")
    publishing = _publishing(base, await _publisher(base, connection))
    store_breaker = base.breaker("outbox database", cap_seconds=_PROBE_MAX_SECONDS)
    wakeup = await _wakeup(base)
    partitions = PostgresPartitions(pool=pool)
    outbox = partial(_outbox, base, pool, publishing.policy)
    turn = _turn(base, pool) if stands_by else None
    unordered, ordered = outbox(ordered=False), outbox(ordered=True, lane=turn)
    lane = partial(
        _lane,
        base,
        publishing,
        wakeup=wakeup,
        store_breaker=store_breaker,
        room=MemoryBudget(s.outbox_bytes_max),
    )
    if base.takeover is not None:
        base.takeover.sides["outbox"] = ordered.take_over
    reaper = LeaseReaper(outbox=unordered, events=base.events)
    reap_seconds = min(s.outbox_lease_seconds / 2, _REAP_SECONDS_MAX)
    reaping = PeriodicTask(work=reaper.reap, store_breaker=store_breaker, seconds=reap_seconds)
    maker = PartitionMaker(partitions=partitions, events=base.events, days_ahead=PARTITIONS_AHEAD_DAYS)
    making = PeriodicTask(work=maker.make, store_breaker=store_breaker, seconds=_PARTITIONS_SECONDS)
    return {
        "outbox unordered": lane(unordered, keyed=False).run,
        "outbox ordered": lane(ordered, keyed=True, turn=turn).run,
        "reaper": reaping.run,
        "partitions": making.run,
        "stream": lost_event_check(base, pool, connection, store_breaker),
    }


async def _publisher(base: WorkerContext, connection: NatsConnection) -> JetStreamPublisher:
    s = base.settings
    if s.outbox_publish_mode == "fast":
        text = "the publish mode fast is deprecated and means auto: set SEA_MQ_OUTBOX_PUBLISH_MODE=auto"
        base.events.emit("setting_deprecated", text=text)
    publisher = NatsJetStreamPublisher(
        connection=connection,
        stream=s.stream,
        mode="auto" if s.outbox_publish_mode == "fast" else s.outbox_publish_mode,
        publish_timeout_seconds=s.outbox_publish_timeout_seconds,
        find_timeout_seconds=_search_seconds(s),
    )
    await base.connect(publisher.start, f"stream {s.stream}")
    _check_window(base, publisher.duplicate_window_seconds)
    if not s.tracing:
        return publisher
    from sea_mq_worker.telemetry.tracing import TracedPublisher  # noqa: PLC0415 - imports OpenTelemetry

    return TracedPublisher(publisher)


def _search_seconds(s: Settings) -> float:
    """Return the time that a lease leaves for a search, before publish and settlement."""
    spare = s.outbox_lease_seconds - s.outbox_publish_timeout_seconds - s.database_timeout_seconds
    return max(spare, s.outbox_publish_timeout_seconds)


def _check_window(base: WorkerContext, seconds: float) -> None:
    """Require a deduplication window that covers the repetitions within one claim."""
    s = base.settings
    if seconds <= s.outbox_publish_timeout_seconds:
        raise SettingsError(
            f"SEA_MQ_OUTBOX_PUBLISH_TIMEOUT_SECONDS: must be below the duplicate_window of stream {s.stream} "
            f"({seconds:g} s)"
        )
    if seconds < s.outbox_lease_seconds + s.outbox_publish_timeout_seconds:
        text = (
            f"the duplicate_window of stream {s.stream}, {seconds:g} s, is shorter than lease and publish "
            "time-out together: after a crash the worker searches the stream before it sends an event again; "
            "give all workers the same SEA_MQ_OUTBOX_LEASE_SECONDS"
        )
        base.events.emit("duplicate_window_short", text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """The parts that both lanes share."""

    publisher: JetStreamPublisher
    policy: RetryPolicy
    breaker: CircuitBreaker
    searches: StreamSearches


def _lane(
    base: WorkerContext,
    publishing: Publishing,
    outbox: OutboxRepository,
    *,
    keyed: bool,
    wakeup: Callable[[bool], Wakeup],
    store_breaker: CircuitBreaker,
    room: MemoryBudget,
    turn: LaneTurn | None = None,
) -> OutboxPublisher:
    s = base.settings
    return OutboxPublisher(
        context=s.context,
        source=s.source,
        outbox=outbox,
        publisher=publishing.publisher,
        policy=publishing.policy,
        searches=publishing.searches,
        events=base.events,
        pace=Pace(
            wakeup=wakeup(keyed),
            clock=base.clock,
            linger_seconds=min(_LINGER_SECONDS, s.outbox_poll_seconds),
            poll_seconds=s.outbox_poll_seconds,
            random=publishing.policy.backoff.random,
        ),
        broker_breaker=publishing.breaker,
        store_breaker=store_breaker,
        clock=base.clock,
        room=room,
        batch_max=s.outbox_batch_max,
        batch_bytes_max=min(_BATCH_BYTES, s.outbox_bytes_max),
        batches_max=s.outbox_batches_max,
        lease_seconds=s.outbox_lease_seconds,
        publish_seconds=s.outbox_publish_timeout_seconds,
        search_seconds=_search_seconds(s),
        hold_dead_keys=s.outbox_dead_key == "hold",
        session_lost_since=base.session_lost_since,
        settles_together=not keyed,
        turn=turn,
    )


def _publishing(base: WorkerContext, publisher: JetStreamPublisher) -> Publishing:
    s = base.settings
    policy = RetryPolicy(
        backoff=base.backoff(base_seconds=s.outbox_backoff_seconds, cap_seconds=s.outbox_backoff_max_seconds),
        failures_max=s.outbox_failures_max,
        age_max_seconds=_AGE_MAX_SECONDS,
        duplicate_window=lambda: publisher.duplicate_window_seconds,
    )
    return Publishing(
        publisher=publisher,
        policy=policy,
        breaker=base.breaker(f"stream {s.stream}", cap_seconds=_PROBE_MAX_SECONDS),
        searches=StreamSearches(context=s.context, events=base.events),
    )


def _outbox(
    base: WorkerContext,
    pool: asyncpg.Pool,
    policy: RetryPolicy,
    *,
    ordered: bool,
    lane: PostgresLaneTurn | None = None,
) -> PostgresOutboxAdapter:
    s = base.settings
    longest = max(s.outbox_backoff_max_seconds, _REAP_DELAY_SECONDS)
    return PostgresOutboxAdapter(
        pool=pool,
        worker=base.name,
        lease_seconds=s.outbox_lease_seconds,
        ordered=ordered,
        hold_dead_keys=s.outbox_dead_key == "hold",
        failures_max=s.outbox_failures_max,
        delay_max_seconds=lambda: max(longest, policy.duplicate_window()),
        lane=lane,
        session=base.session_id,
    )


def _turn(base: WorkerContext, pool: asyncpg.Pool) -> PostgresLaneTurn | None:
    """Return the turn of this worker, which needs a session and a connection besides that of the lane."""
    if base.settings.database_pooler or base.settings.database_pool_max == 1:
        return None
    turn = PostgresLaneTurn(
        pool=pool,
        hold_dead_keys=base.settings.outbox_dead_key == "hold",
        on_event=lambda event, text: base.events.emit(event, text=text),
    )
    base.stack.push_async_callback(turn.leave)
    return turn


async def _wakeup(base: WorkerContext) -> Callable[[bool], Wakeup]:
    """Return the wake-up of each lane; the argument is whether it has ordering keys."""
    s = base.settings
    if s.database_pooler:
        return lambda _keyed: PollingWakeup()
    wakeup = PostgresWakeup(dsn=s.database_url.get_secret_value(), schema=s.database_schema)
    base.stack.push_async_callback(wakeup.close)
    await wakeup.start()
    return wakeup.lane
