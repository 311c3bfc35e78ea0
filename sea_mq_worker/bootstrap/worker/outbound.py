"""The outbound side: outbox -> JetStream."""

from collections.abc import Callable
from functools import partial

import asyncpg

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.publish.publisher import NatsJetStreamPublisher
from sea_mq_worker.adapters.postgres.lane_turn import PostgresLaneTurn
from sea_mq_worker.adapters.postgres.outbox import PostgresOutboxAdapter
from sea_mq_worker.adapters.postgres.schema.partitions import PostgresPartitions
from sea_mq_worker.adapters.postgres.wakeup import PostgresWakeup
from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.claim_size import MemoryBudget
from sea_mq_worker.application.dedup_window import StreamSearches
from sea_mq_worker.application.maintenance import LeaseReaper, PartitionMaker, PeriodicTask
from sea_mq_worker.application.outbox.batch_publisher import BatchPublisher
from sea_mq_worker.application.outbox.deferred import DeferredSettlements
from sea_mq_worker.application.outbox.pace import Pace
from sea_mq_worker.application.outbox.publisher import OutboxPublisher
from sea_mq_worker.application.outbox.settlement import Settlement
from sea_mq_worker.application.supervisor import Loop
from sea_mq_worker.application.waiting import PollingWakeup
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.bootstrap.worker.stream_losses import lost_event_check
from sea_mq_worker.bootstrap.worker.telemetry import traced_publisher
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.domain.retry import RetryPolicy
from sea_mq_worker.ports.jetstream import JetStreamPublisher
from sea_mq_worker.ports.lane_turn import LaneTurn
from sea_mq_worker.ports.outbox import OutboxRepository
from sea_mq_worker.ports.wakeup import Wakeup
from sea_mq_worker.settings import Settings, SettingsError

_PROBE_MAX_SECONDS = 2.0
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
    reaper = LeaseReaper(outbox=unordered, observer=base.observer)
    reap_seconds = min(s.outbox_lease_seconds / 2, _REAP_SECONDS_MAX)
    reaping = PeriodicTask(work=reaper.reap, store_breaker=store_breaker, seconds=reap_seconds)
    maker = PartitionMaker(partitions=partitions, observer=base.observer, days_ahead=s.outbox_partition_days)
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
        base.observer.observe(Noticed(event="setting_deprecated", text=text))
    publisher = NatsJetStreamPublisher(
        connection=connection,
        stream=s.stream,
        mode="auto" if s.outbox_publish_mode == "fast" else s.outbox_publish_mode,
        publish_timeout_seconds=s.outbox_publish_timeout_seconds,
        find_timeout_seconds=_search_seconds(s),
    )
    await base.connect(publisher.start, f"stream {s.stream}")
    _check_window(base, publisher.duplicate_window_seconds)
    return traced_publisher(publisher) if s.tracing else publisher


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
        base.observer.observe(Noticed(event="duplicate_window_short", text=text))


def _lane(
    base: WorkerContext,
    publishing: BatchPublisher,
    outbox: OutboxRepository,
    *,
    keyed: bool,
    wakeup: Callable[[bool], Wakeup],
    store_breaker: CircuitBreaker,
    room: MemoryBudget,
    turn: LaneTurn | None = None,
) -> OutboxPublisher:
    s = base.settings
    settlement = Settlement(
        context=s.context,
        observer=base.observer,
        store_breaker=store_breaker,
        clock=base.clock,
        lease_seconds=s.outbox_lease_seconds,
    )
    return OutboxPublisher(
        outbox=outbox,
        publishing=publishing,
        settlement=settlement,
        deferred=None if keyed else DeferredSettlements(outbox=outbox, settlement=settlement),
        pace=Pace(
            wakeup=wakeup(keyed),
            clock=base.clock,
            linger_seconds=s.outbox_linger_seconds,
            poll_seconds=s.outbox_poll_seconds,
            random=publishing.policy.backoff.random,
        ),
        broker_breaker=publishing.broker_breaker,
        store_breaker=store_breaker,
        clock=base.clock,
        room=room,
        batch_max=s.outbox_batch_max,
        batch_bytes_max=s.outbox_batch_bytes_max,
        batches_max=s.outbox_batches_max,
        turn=turn,
    )


def _publishing(base: WorkerContext, publisher: JetStreamPublisher) -> BatchPublisher:
    s = base.settings
    policy = RetryPolicy(
        backoff=base.backoff(base_seconds=s.outbox_backoff_seconds, cap_seconds=s.outbox_backoff_max_seconds),
        failures_max=s.outbox_failures_max,
        age_max_seconds=s.outbox_age_max_seconds,
        duplicate_window=lambda: publisher.duplicate_window_seconds,
    )
    return BatchPublisher(
        context=s.context,
        source=s.source,
        publisher=publisher,
        policy=policy,
        broker_breaker=base.breaker(f"stream {s.stream}", cap_seconds=_PROBE_MAX_SECONDS),
        searches=StreamSearches(context=s.context, observer=base.observer),
        clock=base.clock,
        timeout_seconds=s.outbox_publish_timeout_seconds,
        search_seconds=_search_seconds(s),
        hold_dead_keys=s.outbox_dead_key == "hold",
        session_lost_since=base.session_lost_since,
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
        on_event=lambda event, text: base.observer.observe(Noticed(event=event, text=text)),
    )
    base.stack.push_async_callback(turn.leave)
    return turn


async def _wakeup(base: WorkerContext) -> Callable[[bool], Wakeup]:
    """Return the wake-up of each lane; the argument is whether it has ordering keys."""
    s = base.settings
    if s.database_pooler or not s.outbox_notify:
        return lambda _keyed: PollingWakeup()
    wakeup = PostgresWakeup(dsn=s.database_url.get_secret_value(), schema=s.database_schema)
    base.stack.push_async_callback(wakeup.close)
    await wakeup.start()
    return wakeup.lane
