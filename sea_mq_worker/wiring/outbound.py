"""The outbound side: outbox -> JetStream."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import asyncpg

from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from sea_mq_worker.outbox.maintenance import end_expired_leases, loss_check, make_partitions
from sea_mq_worker.outbox.pace import MemoryBudget, Pace
from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from sea_mq_worker.outbox.publisher import OutboxPublisher
from sea_mq_worker.outbox.retry import RetryPolicy
from sea_mq_worker.outbox.search import StreamSearches, short_window, unfit_window
from sea_mq_worker.outbox.wakeup import PostgresWakeup
from sea_mq_worker.ports import JetStreamPublisher, LaneTurn, OutboxRepository, Wakeup
from sea_mq_worker.postgres.lane import PostgresLaneTurn
from sea_mq_worker.postgres.partitions import PARTITIONS_AHEAD_DAYS, PostgresPartitions
from sea_mq_worker.runtime.breaker import CircuitBreaker, periodic
from sea_mq_worker.runtime.supervisor import Loop
from sea_mq_worker.runtime.waiting import PollingWakeup
from sea_mq_worker.settings import Settings, SettingsError
from sea_mq_worker.wiring.context import WorkerContext

_PROBE_MAX_SECONDS = 2.0
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
    return {
        "outbox unordered": lane(unordered, keyed=False).run,
        "outbox ordered": lane(ordered, keyed=True, turn=turn).run,
        "reaper": periodic(
            partial(end_expired_leases, unordered, base.events),
            breaker=store_breaker,
            seconds=min(s.outbox_lease_seconds / 2, _REAP_SECONDS_MAX),
        ),
        "partitions": periodic(
            partial(
                make_partitions,
                PostgresPartitions(pool=pool),
                base.events,
                days_ahead=PARTITIONS_AHEAD_DAYS,
            ),
            breaker=store_breaker,
            seconds=_PARTITIONS_SECONDS,
        ),
        "stream": loss_check(
            pool,
            connection,
            stream=s.stream,
            breaker=store_breaker,
            events=base.events,
            on_look=base.metrics.set_events_lost,
        ),
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
    window, publish_seconds = publisher.duplicate_window_seconds, s.outbox_publish_timeout_seconds
    if problem := unfit_window(s.stream, window, publish_seconds=publish_seconds):
        raise SettingsError(problem)
    short = short_window(
        s.stream, window, publish_seconds=publish_seconds, lease_seconds=s.outbox_lease_seconds
    )
    if short:
        base.events.emit("duplicate_window_short", text=short)
    if not s.tracing:
        return publisher
    from sea_mq_worker.telemetry.tracing import TracedPublisher  # noqa: PLC0415 - imports OpenTelemetry

    return TracedPublisher(publisher)


def _search_seconds(s: Settings) -> float:
    """Return the time that a lease leaves for a search, before publish and settlement."""
    spare = s.outbox_lease_seconds - s.outbox_publish_timeout_seconds - s.database_timeout_seconds
    return max(spare, s.outbox_publish_timeout_seconds)


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
