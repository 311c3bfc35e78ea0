"""Status: what the worker knows about itself without asking a server, for ``/status`` and the page.

It listens to the worker's events, samples tables and consumers every 15 seconds, and so answers at once,
even while a database or a broker hangs. It stores error texts, because they name the cause, but no id and
no payload.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import asyncpg

from sea_mq_worker.admin.summary import TREND_SECONDS, HealthSummary, Side, Situation, health_summary
from sea_mq_worker.connections import open_pool
from sea_mq_worker.errors import WorkerError
from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.inbox.undelivered import RecordedMissed, recorded_missed
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.operators.records import ConsumerState, Depth, Overview
from sea_mq_worker.operators.streams import consumer_state
from sea_mq_worker.operators.tables import BY_INDEX, depth, overview, without_read_ahead
from sea_mq_worker.ports import Events
from sea_mq_worker.postgres.migrations import (
    altered_migrations,
    check_rows_visible,
    check_version,
    claim_schema,
)
from sea_mq_worker.postgres.pool import check_connection_limit, leave_former_primary
from sea_mq_worker.runtime.breaker import CircuitBreaker, call_when_available
from sea_mq_worker.runtime.waiting import StoppedError, cancel_on_stop, sleep_or_stop
from sea_mq_worker.settings import Settings
from sea_mq_worker.telemetry.events import NOTICES
from sea_mq_worker.telemetry.metrics import Metrics
from sea_mq_worker.telemetry.metrics import Side as SideName

SAMPLE_SECONDS = 15
DEPTH_MAX = 100_000
"""Cap on the rows that a sample counts."""
_TREND_SAMPLES = TREND_SECONDS // SAMPLE_SECONDS + 1
_OVERVIEW_EVERY = 4
"""Number of samples per overview, which is costly; a change of the dead counts brings it sooner."""
_PURPOSE = "upkeep"
_NOT_COUNTED = Depth(count=0, oldest_at=None, waiting=0, waiting_seconds=0.0, scheduled=0, dead=0)
_FLOWS: Mapping[SideName, str] = {"outbox": "published", "inbox": "processed"}
_ERRORS = {
    "event_postponed": ("outbox", "retried", "error"),
    "event_died": ("outbox", "DEAD", "error"),
    "message_retried": ("inbox", "retried", "error"),
    "message_given_back": ("inbox", "given back", "error"),
    "message_dead_lettered": ("inbox", "dead letter", "reason"),
}
"""Events that the page lists as errors: side, effect, and the field with the text."""
_ERRORS_MAX = 64
_SHOWN_MAX = 8
_TEXT_MAX = 300


class Status:
    """State of the worker; one object for the worker's life.

    Args:
        info: constant fields of the JSON.
        sides: the sides that this worker serves.
        metrics: gets the samples, and has the counts since the start.
        reasons: why the worker is not ready, by part.
        warnings: troubles, by name, in spite of which it is ready.
        now: seconds since 1970.
        clock: monotonic seconds, which no change of the clock affects.
    """

    def __init__(
        self,
        info: Mapping[str, object],
        *,
        sides: Sequence[SideName],
        metrics: Metrics,
        reasons: Callable[[], Mapping[str, str]],
        warnings: Callable[[], Mapping[str, str]] = dict,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._info, self._sides, self._metrics = info, sides, metrics
        self._reasons, self._warnings = reasons, warnings
        self._now, self._clock = now, clock
        self._started = clock()
        self._tables: dict[str, tuple[Depth, float]] = {}
        self._waited = {side: deque[tuple[int, float]](maxlen=_TREND_SAMPLES) for side in _FLOWS}
        self._consumers: dict[tuple[str, str], tuple[ConsumerState | None, str]] = {}
        self._overview: Overview | None = None
        self._missed: Sequence[RecordedMissed] = ()
        self._errors: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._slow_types: set[str] = set()
        self._waiting_for = ""
        self._opened: dict[str, float] = {}
        self._since = {"start": now()}
        self._state = ("", self._started)

    # --- What the worker reports.

    def emit(self, key: str, /, **fields: Any) -> None:
        """Take note of an event; see ``ports.Events``."""
        if found := _ERRORS.get(key):
            side, effect, field = found
            group = side, effect, _cut(fields[field])
            count, _ = self._errors.pop(group, (0, 0.0))
            self._errors[group] = (count + 1, self._now())
            if len(self._errors) > _ERRORS_MAX:
                del self._errors[next(iter(self._errors))]
        elif key == "circuit_opened":
            self._opened.setdefault(fields["circuit"], self._now())  # it may have failed again
        elif key == "circuit_closed":
            self._opened.pop(fields["circuit"], None)
        elif key == "type_slowed":
            self._slow_types.add(fields["event_type"])
        elif key == "type_resumed":
            self._slow_types.discard(fields["event_type"])
        elif key == "waiting":
            self._waiting_for = _cut(fields["text"])
        elif "text" in fields and key not in NOTICES:
            self._waiting_for = ""  # the start goes on

    # --- Samples of tables and consumers.

    def set_depth(self, side: SideName, found: Depth) -> None:
        """Record a sample of one side's table."""
        self._metrics.set_depth(
            side,
            waiting=found.waiting,
            waiting_seconds=found.waiting_seconds,
            dead=found.dead,
            scheduled=found.scheduled,
        )
        self._tables[side] = found, self._clock()
        self._waited[side].append((found.waiting + self._undelivered(side), self._clock()))

    def set_consumer(self, state: ConsumerState) -> None:
        """Record the state of a consumer."""
        self._consumers[state.stream, state.durable] = state, ""
        self._metrics.set_consumer(
            state.durable, state.pending, state.ack_pending, state.oldest_seconds or 0.0
        )

    def set_consumer_error(self, stream: str, durable: str, error: str) -> None:
        """Record why a consumer's state is unknown; the numbers before it stay."""
        known, _ = self._consumers.get((stream, durable), (None, ""))
        self._consumers[stream, durable] = known, error

    async def watch_tables(self, stop: asyncio.Event, *, pool: asyncpg.Pool, breaker: CircuitBreaker) -> None:
        """Sample the tables every 15 seconds; check that this worker may go on with them."""
        rounds, dead = 0, (0, 0)

        async def sample() -> None:
            nonlocal rounds, dead
            await leave_former_primary(pool)
            outbox = await depth(pool, "outbox", limit=DEPTH_MAX)
            inbox = await depth(pool, "inbox", limit=DEPTH_MAX)
            self.set_depth("outbox", outbox)
            self.set_depth("inbox", inbox)
            self._missed = await recorded_missed(pool)
            if rounds % _OVERVIEW_EVERY == 0 or dead != (outbox.dead, inbox.dead):
                await check_rows_visible(pool)
                self._overview = await overview(pool, sessions=f"sea_mq_worker {_PURPOSE}")
            rounds, dead = rounds + 1, (outbox.dead, inbox.dead)
            await check_version(pool)  # a migration may be too new for this worker

        with contextlib.suppress(StoppedError):
            while not stop.is_set():
                await call_when_available(sample, breaker=breaker, stop=stop)
                self._health()  # dates a state from its beginning, also if nobody looks at the page
                await sleep_or_stop(stop, seconds=SAMPLE_SECONDS)

    async def watch_consumers(
        self,
        stop: asyncio.Event,
        *,
        consumers: Sequence[NatsJetStreamConsumer],
        connection: NatsConnection,
        pool: asyncpg.Pool,
        events: Events,
    ) -> None:
        """Sample the durables every 15 seconds; pause those that became unfit, and report changed filters."""
        filters: dict[str, Sequence[str]] = {}

        async def sample() -> None:
            for consumer in consumers:
                try:
                    info = await consumer.look()
                    state = await consumer_state(connection, info)
                    state = await without_read_ahead(pool, state, limit=DEPTH_MAX)
                except WorkerError as error:
                    self.set_consumer_error(consumer.stream, consumer.name, str(error))
                    continue
                self.set_consumer(state)
                name = f"consumer {consumer.name} of stream {consumer.stream}"
                before = filters.get(name, info.filters)
                filters[name] = info.filters
                if info.filters != before:
                    taken, took = (", ".join(each) or "all subjects" for each in (info.filters, before))
                    text = f"{name} takes {taken}, before {took}: it passes messages of other subjects for"
                    text += " good; `python -m sea_mq_worker pipeline reconcile` finds them"
                    events.emit("consumer_filter_changed", text=text)

        with contextlib.suppress(StoppedError):
            while not stop.is_set():
                await cancel_on_stop(stop, sample())
                await sleep_or_stop(stop, seconds=SAMPLE_SECONDS)

    # --- What the page reads.

    def status(self) -> Mapping[str, object]:
        """Return the JSON of ``/status``; times are in seconds since 1970."""
        totals = self._metrics.totals()
        consumers = []
        for (stream, durable), (state, error) in self._consumers.items():
            fields = asdict(state) if state else {"stream": stream, "durable": durable}
            unwanted = {"delivered_seq", "oldest_id"}
            consumers.append(
                {k: v for k, v in fields.items() if k not in unwanted} | {"error": error or None}
            )
        errors = sorted(self._errors.items(), key=lambda group: -group[1][0])
        return {
            **self._info,
            "totals": totals,
            "now": self._now(),
            "started": self._wall_time(self._started),
            "health": self._health(),
            "sides": {side: self._shown(side) for side in self._sides},
            "consumers": consumers,
            "overview": self._overview,
            "slow_types": self._slow(),
            "errors": [
                {"side": side, "effect": effect, "text": text, "count": count, "last": last}
                for (side, effect, text), (count, last) in errors[:_SHOWN_MAX]
            ],
        }

    def _shown(self, side: SideName) -> Mapping[str, object]:
        shown: dict[str, object] = {
            "sample": None,
            "undelivered": self._undelivered(side),
            "at": None,
            "per_second": self._metrics.rates()[_FLOWS[side]],
        }
        if side in self._tables:
            found, at = self._tables[side]
            shown["at"] = self._wall_time(at)
            shown["sample"] = {
                "depth": found.waiting,
                "oldest_seconds": found.waiting_seconds,
                "dead": found.dead,
                "scheduled": found.scheduled,
            }
        return shown

    def _health(self) -> HealthSummary:
        """Summarize the health, since its first cause or since its first appearance."""
        reasons, warnings = self._reasons(), self._warnings()
        self._since = {part: self._since.get(part, self._now()) for part in (*reasons, *warnings)}
        totals = self._metrics.totals()
        found = health_summary(
            Situation(
                sides=[self._side(side, totals.get(_FLOWS[side], 0)) for side in self._sides],
                reasons=reasons,
                warnings=warnings,
                since=self._since | self._opened,
                paused_consumers=[
                    state
                    for state, _ in self._consumers.values()
                    if state and state.pending and state.paused_seconds
                ],
                slow_types=self._slow(),
                missed=self._missed,
                waiting_for=self._waiting_for,
            )
        )
        state = f"{found.state} {found.level}"
        if state != self._state[0]:
            self._state = state, self._clock()
        return replace(
            found, since=found.causes[0].since if found.causes else self._wall_time(self._state[1])
        )

    def _side(self, side: SideName, done: float) -> Side:
        found, at = self._tables.get(side, (_NOT_COUNTED, self._clock()))
        oldest = [found.waiting_seconds]
        if side == "inbox":
            oldest += [state.oldest_seconds or 0.0 for state, _ in self._consumers.values() if state]
        before, then = self._waited[side][0] if self._waited[side] else (0, self._clock())
        is_trend = abs(self._clock() - then - TREND_SECONDS) < 2 * SAMPLE_SECONDS
        return Side(
            name=side,
            waiting=found.waiting + self._undelivered(side),
            undelivered=self._undelivered(side),
            oldest_seconds=max(oldest),
            dead=found.dead,
            scheduled=found.scheduled,
            sample_age_seconds=self._clock() - at,
            before=before if is_trend else None,
            done=done,
        )

    def _undelivered(self, side: SideName) -> int:
        """Return the number of messages that the consumers had not delivered at the last sample."""
        return sum(state.pending for state, _ in self._consumers.values() if state and side == "inbox")

    def _slow(self) -> Sequence[str]:
        return sorted(self._slow_types)[:_SHOWN_MAX]

    def _wall_time(self, at: float) -> float:
        """Convert a monotonic time to seconds since 1970, by the current clock."""
        return round(self._now() - (self._clock() - at), 1)


async def open_upkeep(settings: Settings, events: Events) -> asyncpg.Pool:
    """Connect the pool that samples, once the tables are those of this worker; close it at the end.

    Raises:
        StoreUnavailableError: PostgreSQL cannot serve now.
        ContractError: the schema has another version or context, or hides rows; or the connections are few.
    """
    pool = await open_pool(settings, purpose=_PURPOSE, hints=BY_INDEX)
    try:
        await check_version(pool)
        if not settings.database_pooler:  # its limits are other ones
            least, most = settings.connections_min, settings.connections_max
            if short := await check_connection_limit(pool, least=least, most=most):
                events.emit("connections_short", text=short)
        for script in await altered_migrations(pool):
            text = f"{script.name} was applied with other content; run `python -m sea_mq_worker doctor`"
            events.emit("migration_altered", text=text)
        await claim_schema(pool, settings.context)
        await check_rows_visible(pool)
    except BaseException:
        pool.terminate()
        raise
    return pool


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
