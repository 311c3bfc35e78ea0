"""The worker, put together: settings in, loops out. It also runs inside a service's own process.

Only this module builds the loops of both directions, which do not know each other::

    run_worker        logs and health pages first; then start; then supervise until the stop
      _start          session, upkeep, outbox, inbox, takeover: the loops by name
        _outbox       two lanes, with and without ordering keys, and the upkeep of the table
        _inbox        a consumer for each durable, and what finds the messages that no delivery brings
    running_worker    the same in a service, such as in the lifespan of a FastAPI application

Inside a service, the worker leaves logging, signals and tracing to the service: its records go to the logger
``sea_mq_worker`` and to the handlers of the root logger, its spans to the service's tracer provider. It
listens on no port.
"""

import asyncio
import importlib.metadata
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import asyncpg

from sea_mq_worker.admin.api import OperatorApi
from sea_mq_worker.admin.server import AdminServer
from sea_mq_worker.admin.status import DEPTH_MAX, Status, open_upkeep
from sea_mq_worker.connections import SecretFile, exposures, open_handler
from sea_mq_worker.errors import ContractError, LimitsError, WorkerError
from sea_mq_worker.inbox.consumer import InboxConsumer, recover_exhausted
from sea_mq_worker.inbox.dead_letter import DeadLetterPublisher
from sea_mq_worker.inbox.health import HandlerHealth, resume_requested
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.inbox.leases import InboxLeases
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter, resumed
from sea_mq_worker.inbox.rescue import take_over_deliveries
from sea_mq_worker.inbox.sharing import InboxSharing, handler_name
from sea_mq_worker.inbox.undelivered import MissedMessageCheck, NatsExhaustedMessages
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.operators.definitions import report_differences
from sea_mq_worker.operators.tables import open_tables
from sea_mq_worker.outbox.backlog import Backlog, stopped_early
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from sea_mq_worker.outbox.maintenance import end_expired_leases, loss_check, make_partitions
from sea_mq_worker.outbox.pace import MemoryBudget, Pace
from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from sea_mq_worker.outbox.publisher import OutboxPublisher
from sea_mq_worker.outbox.retry import RetryPolicy
from sea_mq_worker.outbox.search import StreamSearches, short_window, unfit_window
from sea_mq_worker.outbox.share import PostgresKeyShare
from sea_mq_worker.outbox.wakeup import PollingWakeup, PostgresWakeup
from sea_mq_worker.parts import Parts, sides_of
from sea_mq_worker.ports import (
    EventHandler,
    InboxRepository,
    JetStreamPublisher,
    KeyShare,
    OutboxRepository,
    Wakeup,
)
from sea_mq_worker.postgres.partitions import PARTITIONS_AHEAD_DAYS, PostgresPartitions
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker, call_when_available, periodic
from sea_mq_worker.runtime.supervisor import ExitCode, Loop, Readiness, supervise
from sea_mq_worker.runtime.takeover import EndLeases, Takeover
from sea_mq_worker.runtime.waiting import (
    StoppedError,
    bounded_stack,
    cancel_on_stop,
    report_ready,
)
from sea_mq_worker.settings import ConsumerSettings, Settings, SettingsError, check_settings, load_settings
from sea_mq_worker.telemetry.events import Listeners
from sea_mq_worker.telemetry.logs import LogListener, configure
from sea_mq_worker.telemetry.metrics import Metrics

__all__ = ["RunningWorker", "Settings", "WorkerEndedError", "load_settings", "running_worker"]

_VERSION = importlib.metadata.version("sea-mq-worker")
_BESIDE_OTHERS: Mapping[str, Any] = MappingProxyType({"consumers": (), "worker_name": "", "admin_port": 0})
"""Settings of a worker that only publishes a backlog, beside workers of the same settings."""
_PATIENT_PROBE_MAX_SECONDS = 5.0
"""For a sick handler, and for samples that nobody waits for."""


async def run_worker(
    settings: Settings,
    stop: asyncio.Event,
    *,
    until_empty: bool = False,
    host: Callable[[Parts], None] | None = None,
) -> ExitCode:
    """Run until ``stop``; return the exit code of the process.

    ``until_empty``: only publish the outbox, under a name and a port of its own, and end when none of the
    events that were due at the start can be published; FAILED if any of them is unpublished then. ``host``
    gets the parts before the start. The process then belongs to another program: the worker configures
    neither logs nor tracing, and serves no admin pages.

    SettingsError: a setting is missing, or contradicts what a server reports. StoreUnavailableError: the
    unpublished events cannot be counted at the end.
    """
    s = settings.model_copy(update=_BESIDE_OTHERS) if until_empty else settings
    if s.consumers and not s.handler_url:
        raise SettingsError(
            "SEA_MQ_HANDLER_URL: is required, since there are consumers (SEA_MQ_CONSUMERS= for none)"
        )
    if host is None:
        configure(level=s.log_level, format=s.log_format, stream=sys.stderr)
    # no other has this name, also after a restart in a container
    name = s.worker_name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
    metrics, readiness = Metrics(), Readiness()
    status = _status(s, name, metrics, readiness)
    async with bounded_stack() as stack:
        parts = Parts(
            settings=s,
            name=name,
            events=Listeners([LogListener(in_text=host is not None), metrics, status]),
            metrics=metrics,
            stop=stop,
            stack=stack,
            readiness=readiness,
        )
        for key, text in exposures(s):
            parts.events.emit(key, text=text)
        readiness.check("start", lambda: "" if parts.started.is_set() else "the worker is starting")
        readiness.check("stop", lambda: "the worker is stopping" if stop.is_set() else "")
        if host is not None:
            host(parts)
        else:
            _trace(parts)
            await _serve(parts, status)
        try:
            loops, backlog = await cancel_on_stop(stop, _start(parts, status, until_empty=until_empty))
        except StoppedError:
            return stopped_early(parts.events) if until_empty else ExitCode.DONE
        except ContractError as error:
            parts.events.emit("contract_broken", text=str(error))
            return ExitCode.CONTRACT
        parts.started.set()
        if host is None and (manager := os.environ.get("NOTIFY_SOCKET")):
            try:
                report_ready(manager)
            except OSError as error:
                raise SettingsError(f"NOTIFY_SOCKET: {error.strerror}") from error
        code = await supervise(
            loops, stop, name=name, version=_VERSION, events=parts.events, grace_seconds=s.grace_seconds
        )
        if backlog and code is ExitCode.DONE:
            return await backlog.exit_code(open_tables(s, purpose="backlog"))
        return code


def _status(s: Settings, name: str, metrics: Metrics, readiness: Readiness) -> Status:
    offers = "all" if s.admin_token_file else "numbers"
    info = {
        "worker": name,
        "context": s.context,
        "version": _VERSION,
        "offers": offers,
        "depth_max": DEPTH_MAX,
    }
    reasons, warnings = readiness.reasons, readiness.warnings
    return Status(info, sides=sides_of(s), metrics=metrics, reasons=reasons, warnings=warnings)


def _trace(parts: Parts) -> None:
    s = parts.settings
    if not s.tracing:
        return
    from sea_mq_worker.telemetry.otlp import described, export_spans  # noqa: PLC0415 - imports OpenTelemetry

    try:
        shutdown = export_spans(described(context=s.context, worker=parts.name))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    parts.stack.push_async_callback(shutdown)


async def _serve(parts: Parts, status: Status) -> None:
    """Answer probes from the first moment on."""
    s = parts.settings
    admin = AdminServer(
        host=s.admin_host,
        port=s.admin_port,
        reasons=parts.readiness.reasons,
        warnings=parts.readiness.warnings,
        metrics=parts.metrics.render,
        status=status.status,
        token=SecretFile(s.admin_token_file, key="admin_token_file"),
        operator_api=OperatorApi(s),
    )
    try:
        await admin.start()
    except WorkerError as error:
        raise SettingsError(f"SEA_MQ_ADMIN_HOST, SEA_MQ_ADMIN_PORT: {error}") from error
    parts.stack.push_async_callback(admin.close)
    host = f"[{s.admin_host}]" if ":" in s.admin_host else s.admin_host
    parts.events.emit("admin_listening", text=f"http://{host}:{admin.port}/")


async def _start(
    parts: Parts, status: Status, *, until_empty: bool
) -> tuple[Mapping[str, Loop], Backlog | None]:
    """Open what the settings name; return the loops by name, and the backlog after which the worker ends."""
    s, backlog = parts.settings, None
    await parts.begin_session()
    if until_empty:
        pool, breaker = await parts.pool("backlog"), parts.breaker("backlog")
        holds = s.outbox_dead_key == "hold"
        backlog = await Backlog.open(pool, breaker=breaker, events=parts.events, hold_dead_keys=holds)
    upkeep = await parts.connect(lambda: open_upkeep(s, parts.events), "PostgreSQL")
    parts.stack.push_async_callback(upkeep.close)
    breaker = parts.breaker("upkeep database", cap_seconds=_PATIENT_PROBE_MAX_SECONDS)
    loops: dict[str, Loop] = {"depth": partial(status.watch_tables, pool=upkeep, breaker=breaker)}
    take_overs: dict[str, EndLeases] = {}
    if s.otlp_metrics:
        loops["metrics export"] = _metrics_export(parts)
    if limit := s.broken_seconds_max:
        loops["give up"] = partial(parts.readiness.give_up_after, limit)
    if s.outbox_enabled:
        loops |= await _outbox(parts, take_overs)
    if backlog:
        loops["backlog"] = backlog.run
    if s.consumers:
        loops |= await _inbox(parts, take_overs, status, upkeep)
    if parts.session is not None:
        loops["takeover"] = Takeover(sessions=parts.session, events=parts.events, sides=take_overs).run
    await report_differences(s, parts.events)
    return loops, backlog


def _metrics_export(parts: Parts) -> Loop:
    from sea_mq_worker.telemetry.otlp import MetricsExport, described  # noqa: PLC0415 - as above

    try:
        resource = described(context=parts.settings.context, worker=parts.name)
        export = MetricsExport(parts.metrics, resource)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    parts.stack.push_async_callback(export.export)
    return export.run


# --- Outbox -> JetStream.

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


async def _outbox(parts: Parts, take_overs: dict[str, EndLeases]) -> Mapping[str, Loop]:
    s, events = parts.settings, parts.events
    pool = await parts.pool("outbox")
    connection = await parts.nats("outbox")
    publisher = await _publisher(parts, connection)
    store_breaker = parts.breaker("outbox database")
    wakeup = await _wakeup(parts)
    share = PostgresKeyShare(pool=pool, worker=parts.session_id or secrets.token_hex(4), clock=parts.clock)
    parts.stack.push_async_callback(share.leave)
    longest = max(s.outbox_backoff_max_seconds, _REAP_DELAY_SECONDS)
    outbox = partial(
        PostgresOutboxAdapter,
        pool=pool,
        worker=parts.name,
        lease_seconds=s.outbox_lease_seconds,
        hold_dead_keys=s.outbox_dead_key == "hold",
        failures_max=s.outbox_failures_max,
        delay_max_seconds=lambda: max(longest, publisher.duplicate_window_seconds),
        session=parts.session_id,
    )
    unordered, ordered = outbox(ordered=False), outbox(ordered=True)
    take_overs["outbox"] = ordered.take_over
    lane = publisher_lanes(parts, publisher, store_breaker)
    reap = partial(end_expired_leases, unordered, events)
    reap_seconds = min(s.outbox_lease_seconds / 2, _REAP_SECONDS_MAX)
    partitions = PostgresPartitions(pool=pool)
    make = partial(make_partitions, partitions, events, days_ahead=PARTITIONS_AHEAD_DAYS)
    return {
        "outbox unordered": lane(unordered, wakeup(False), keyed=False).run,
        "outbox ordered": lane(ordered, wakeup(True), keyed=True, share=share).run,
        "reaper": periodic(reap, breaker=store_breaker, seconds=reap_seconds),
        "partitions": periodic(make, breaker=store_breaker, seconds=_PARTITIONS_SECONDS),
        "stream": loss_check(
            pool,
            connection,
            stream=s.stream,
            breaker=store_breaker,
            events=events,
            on_look=parts.metrics.set_events_lost,
        ),
    }


async def _publisher(parts: Parts, connection: NatsConnection) -> JetStreamPublisher:
    s = parts.settings
    if s.outbox_publish_mode == "fast":
        text = "the publish mode fast is deprecated and means auto: set SEA_MQ_OUTBOX_PUBLISH_MODE=auto"
        parts.events.emit("setting_deprecated", text=text)
    publisher = NatsJetStreamPublisher(
        connection=connection,
        stream=s.stream,
        mode="auto" if s.outbox_publish_mode == "fast" else s.outbox_publish_mode,
        publish_timeout_seconds=s.outbox_publish_timeout_seconds,
        find_timeout_seconds=_search_seconds(s),
    )
    await parts.connect(publisher.start, f"stream {s.stream}")
    window, publish_seconds = publisher.duplicate_window_seconds, s.outbox_publish_timeout_seconds
    if problem := unfit_window(s.stream, window, publish_seconds=publish_seconds):
        raise SettingsError(problem)
    lease_seconds = s.outbox_lease_seconds
    if short := short_window(s.stream, window, publish_seconds=publish_seconds, lease_seconds=lease_seconds):
        parts.events.emit("duplicate_window_short", text=short)
    if not s.tracing:
        return publisher
    from sea_mq_worker.telemetry.tracing import TracedPublisher  # noqa: PLC0415 - imports OpenTelemetry

    return TracedPublisher(publisher)


async def _wakeup(parts: Parts) -> Callable[[bool], Wakeup]:
    """Return the wake-up of each lane; the argument is whether it has ordering keys."""
    s = parts.settings
    if s.database_pooler:
        return lambda _keyed: PollingWakeup()
    wakeup = PostgresWakeup(dsn=s.database_url.get_secret_value(), schema=s.database_schema)
    parts.stack.push_async_callback(wakeup.close)
    await wakeup.start()
    return wakeup.lane


def publisher_lanes(
    parts: Parts, publisher: JetStreamPublisher, store_breaker: CircuitBreaker
) -> Callable[..., OutboxPublisher]:
    """Return the maker of lanes, which share retry policy, searches, circuits and memory."""
    s = parts.settings
    policy = RetryPolicy(
        backoff=parts.backoff(s.outbox_backoff_seconds, s.outbox_backoff_max_seconds),
        failures_max=s.outbox_failures_max,
        age_max_seconds=_AGE_MAX_SECONDS,
        duplicate_window=lambda: publisher.duplicate_window_seconds,
    )
    broker_breaker = parts.breaker(f"stream {s.stream}")
    searches = StreamSearches(context=s.context, events=parts.events)
    room = MemoryBudget(s.outbox_bytes_max)

    def lane(
        outbox: OutboxRepository, wakeup: Wakeup, *, keyed: bool, share: KeyShare | None = None
    ) -> OutboxPublisher:
        return OutboxPublisher(
            context=s.context,
            source=s.source,
            outbox=outbox,
            publisher=publisher,
            policy=policy,
            searches=searches,
            events=parts.events,
            pace=Pace(
                wakeup=wakeup,
                clock=parts.clock,
                linger_seconds=min(_LINGER_SECONDS, s.outbox_poll_seconds),
                poll_seconds=s.outbox_poll_seconds,
                random=parts.random,
            ),
            broker_breaker=broker_breaker,
            store_breaker=store_breaker,
            clock=parts.clock,
            room=room,
            batch_max=s.outbox_batch_max,
            batch_bytes_max=min(_BATCH_BYTES, s.outbox_bytes_max),
            batches_max=s.outbox_batches_max,
            lease_seconds=s.outbox_lease_seconds,
            publish_seconds=s.outbox_publish_timeout_seconds,
            delay_max_seconds=_search_seconds(s),
            hold_dead_keys=s.outbox_dead_key == "hold",
            session_lost_since=parts.session_lost_since,
            ordered=keyed,
            share=share,
        )

    return lane


def _search_seconds(s: Settings) -> float:
    """Return the time that a lease leaves for a search, before publish and settlement."""
    spare = s.outbox_lease_seconds - s.outbox_publish_timeout_seconds - s.database_timeout_seconds
    return max(spare, s.outbox_publish_timeout_seconds)


# --- JetStream -> inbox -> handler.

_CHECK_SECONDS = 60.0
"""Interval of the checks for missed messages, and for other handlers on this inbox."""
_RESUME_SECONDS = 2.0
"""Interval between queries for resume requests, while an event type is slow."""


async def _inbox(
    parts: Parts, take_overs: dict[str, EndLeases], status: Status, upkeep: asyncpg.Pool
) -> Mapping[str, Loop]:
    s, events = parts.settings, parts.events
    pool = await parts.pool("inbox")
    connection = await parts.nats("inbox")
    inbox = PostgresInboxAdapter(pool=pool, worker=parts.name, session=parts.session_id)
    store_breaker = parts.breaker("inbox database")
    letters = NatsJetStreamPublisher(
        connection=connection,
        stream=s.dlq_stream,
        mode="pipeline",
        publish_timeout_seconds=s.outbox_publish_timeout_seconds,
    )
    await parts.connect(letters.start, f"stream {s.dlq_stream}")
    health = handler_health(parts)
    make = consumer_loops(
        parts,
        inbox=inbox,
        handler=_handler(parts),
        health=health,
        letters=letters,
        store_breaker=store_breaker,
    )
    consumers = [await _consumer(parts, connection, durable) for durable in s.consumers]
    by_name = {(consumer.stream, consumer.name): consumer for consumer in consumers}
    take_overs["inbox"] = partial(
        take_over_deliveries, inbox=inbox, consumers=by_name, backoff=_inbox_backoff(parts)
    )
    handler = handler_name(s.handler_url)
    sharing = InboxSharing(pool=pool, consumers=consumers, handler=handler, schema=s.database_schema)
    await parts.connect(sharing.begin, "PostgreSQL")
    parts.stack.push_async_callback(sharing.end)
    running: dict[tuple[str, str], InboxConsumer] = {}
    missed = MissedMessageCheck(
        connection=connection, pool=pool, events=events, durables=list(by_name), consuming=running
    )
    await parts.connect(partial(missed.run, parts.stop), "PostgreSQL")
    exhausted = NatsExhaustedMessages(
        connection=connection,
        stream=s.advisory_stream,
        durable=f"{s.context}__max_deliveries",
        consumers=list(by_name),
        events=events,
    )
    await parts.connect(exhausted.start, f"stream {s.advisory_stream}")
    parts.stack.push_async_callback(exhausted.close)
    every = partial(periodic, breaker=store_breaker, seconds=_CHECK_SECONDS)
    exhausted_breaker, resumes = parts.breaker("exhausted messages"), partial(resumed, pool)
    watching = {"consumers": consumers, "connection": connection, "pool": upkeep, "events": events}
    loops: dict[str, Loop] = {
        "consumers of the inbox": every(sharing.record),
        "missed messages": every(partial(missed.run, parts.stop)),
        "max deliveries": partial(recover_exhausted, exhausted, running, exhausted_breaker),
        "resume": partial(resume_requested, resumes, health, events, every_seconds=_RESUME_SECONDS),
        "consumer states": partial(status.watch_consumers, **watching),
    }
    for consumer in consumers:
        breaker = parts.breaker(f"consumer {consumer.name}")
        own = partial(_consume, consumer=consumer, breaker=breaker)
        loops[f"inbox {consumer.name}"] = partial(own, make=make, sharing=sharing, running=running)
    return loops


async def _consumer(
    parts: Parts, connection: NatsConnection, durable: ConsumerSettings
) -> NatsJetStreamConsumer:
    """Bind to a durable; one that is missing or unfit pauses its own loop alone."""
    consumer = NatsJetStreamConsumer(
        connection=connection,
        stream=durable.stream,
        durable=durable.durable,
        handler_timeout_seconds=parts.settings.handler_timeout_seconds,
        attempts_max=parts.settings.inbox_attempts_max,
    )
    parts.stack.push_async_callback(consumer.close)
    try:
        await parts.connect(consumer.start, f"consumer {durable.durable} of stream {durable.stream}")
    except LimitsError as error:
        raise SettingsError(str(error)) from error
    except ContractError:
        pass  # its loop waits for it, and reports that
    return consumer


async def _consume(
    stop: asyncio.Event,
    *,
    consumer: NatsJetStreamConsumer,
    breaker: CircuitBreaker,
    make: Callable[[Any, CircuitBreaker], InboxConsumer],
    sharing: InboxSharing,
    running: dict[tuple[str, str], InboxConsumer],
) -> None:
    """Run the loop of a durable as soon as the durable is there: its limits are the loop's, too."""

    async def begin() -> None:
        await consumer.start()
        await sharing.begin()

    if not consumer.is_known:
        try:
            await call_when_available(begin, breaker=breaker, stop=stop)
        except StoppedError:
            return
    loop = running[consumer.stream, consumer.name] = make(consumer, breaker)
    await loop.run(stop)


def _handler(parts: Parts) -> EventHandler:
    s = parts.settings

    def report(error: str) -> None:
        parts.events.emit("handler_batch_failed", text=error)

    http = open_handler(s, concurrency=s.handler_concurrency * len(s.consumers), on_batch_failed=report)
    parts.stack.push_async_callback(http.close)
    if not s.tracing:
        return http
    from sea_mq_worker.telemetry.tracing import TracedHandler  # noqa: PLC0415 - imports OpenTelemetry

    return TracedHandler(http, s.handler_batch_url or s.handler_url)


def handler_health(parts: Parts) -> HandlerHealth:
    s = parts.settings
    health = HandlerHealth(
        breaker=parts.breaker("handler", cap_seconds=_PATIENT_PROBE_MAX_SECONDS),
        events=parts.events,
        clock=parts.clock,
        backoff=_inbox_backoff(parts),
        slow_after=s.handler_slow_after,
        per_second=s.handler_slow_failures_per_second,
        slow_calls_max=max(1, s.handler_concurrency * len(s.consumers) // 2),
        silent_after_seconds=s.handler_timeout_seconds / 2,
    )
    parts.readiness.check("handler", lambda: health.trouble)
    parts.readiness.warn = health.warnings
    return health


def consumer_loops(
    parts: Parts,
    *,
    inbox: InboxRepository,
    handler: EventHandler,
    health: HandlerHealth,
    letters: JetStreamPublisher,
    store_breaker: CircuitBreaker,
) -> Callable[[Any, CircuitBreaker], InboxConsumer]:
    """Return the maker of consumers' loops, which share the handler, leases and dead letters."""
    s = parts.settings
    leases = InboxLeases(
        inbox=inbox,
        store_breaker=store_breaker,
        events=parts.events,
        clock=parts.clock,
        lease_seconds=s.inbox_lease_seconds,
        session_lost_since=parts.session_lost_since,
    )
    dead_letters = DeadLetterPublisher(
        context=s.context,
        inbox=inbox,
        publisher=letters,
        events=parts.events,
        breaker=parts.breaker(f"stream {s.dlq_stream}"),
        store_breaker=store_breaker,
        clock=parts.clock,
        lease_seconds=s.inbox_lease_seconds,
    )

    def loop(consumer: NatsJetStreamConsumer, broker_breaker: CircuitBreaker) -> InboxConsumer:
        return InboxConsumer(
            consumer=consumer,
            handler=handler,
            health=health,
            leases=leases,
            dead_letters=dead_letters,
            backoff=_inbox_backoff(parts),
            events=parts.events,
            broker_breaker=broker_breaker,
            ack_wait_seconds=consumer.ack_wait_seconds,
            attempts_max=s.inbox_attempts_max,
            messages_max=min(s.in_flight_max, consumer.max_ack_pending),
            bytes_max=max(1, s.inbox_bytes_max // len(s.consumers)),
            calls_max=None if s.handler_batch_url else s.handler_concurrency,
            siblings=frozenset(durable.durable for durable in s.consumers),
        )

    return loop


def _inbox_backoff(parts: Parts) -> Backoff:
    return parts.backoff(parts.settings.inbox_backoff_seconds, parts.settings.inbox_backoff_max_seconds)


# --- In a service's own process.


class WorkerEndedError(WorkerError):
    """The worker ended by itself, or did not stop in time; its log has the cause."""


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """A worker of this process; ``running_worker`` creates it."""

    _parts: Parts
    _task: asyncio.Task[ExitCode]

    def problems(self) -> Mapping[str, str]:
        """Return the reasons why the worker cannot work now, by name of the part; empty: it works."""
        if self._task.done():
            return {"worker": "it has ended; its log has the cause"}
        return self._parts.readiness.reasons()

    def metrics(self) -> str:
        """Return the worker's metrics in the text format of Prometheus."""
        return self._parts.metrics.render().decode()

    async def started(self) -> None:
        """Wait until the worker has started, which needs PostgreSQL and NATS.

        Raises:
            SettingsError: a setting contradicts what a server reports.
            WorkerEndedError: the worker ended before.
        """
        waiting = asyncio.ensure_future(self._parts.started.wait())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._parts.started.is_set():
            self._task.result()
            raise WorkerEndedError("the worker ended before it had started; its log has the cause")


@asynccontextmanager
async def running_worker(settings: Settings | None = None) -> AsyncIterator[RunningWorker]:
    """Run the worker beside the block, and stop it gracefully at the block's end.

    The block begins at once: an unavailable server does not hold the service up.

    Args:
        settings: None: from ``SEA_MQ_*`` and ``SEA_MQ_CONFIG``, as for the command ``run``.

    Raises:
        SettingsError: a setting is wrong or missing, or contradicts what a server reports.
        WorkerEndedError: at the block's end, the worker had ended by itself or exceeds its grace period.
    """
    needs = ("database_url", "nats_url")
    settings = settings or load_settings(needs=needs)
    check_settings(settings, needs=needs)
    stop = asyncio.Event()
    built: asyncio.Future[Parts] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_worker(settings, stop, host=built.set_result), name="sea_mq_worker")
    # nobody awaits the worker's error if the block ends by an error of its own
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    waits: set[asyncio.Future[Any]] = {task, built}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not built.done():
            raise WorkerEndedError(f"the worker ended with exit code {task.result()}")
        yield RunningWorker(built.result(), task)
    finally:
        stop.set()
        await asyncio.wait({task})
    if code := task.result():
        raise WorkerEndedError(f"the worker ended with exit code {code}; its log has the cause")
