"""What every loop of a worker shares: its connections, circuits, session and readiness.

The worker waits for a server that is unavailable at the start, and closes at its end what it opened here.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import tenacity

from sea_mq_worker.connections import open_nats, open_pool
from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.ports import Events
from sea_mq_worker.postgres.sessions import PostgresWorkerSession
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker
from sea_mq_worker.runtime.supervisor import Readiness
from sea_mq_worker.runtime.waiting import monotonic_seconds
from sea_mq_worker.settings import Settings
from sea_mq_worker.telemetry.metrics import Metrics, Side

if TYPE_CHECKING:
    import asyncpg

    from sea_mq_worker.nats.connection import NatsConnection

_T = TypeVar("_T")

_CONNECT_SECONDS = 0.2
_CONNECT_MAX_SECONDS = 5.0
_PROBE_SECONDS = 0.2
_PROBE_MAX_SECONDS = 2.0


def sides_of(s: Settings) -> list[Side]:
    """Return the directions that the settings ask for."""
    works: dict[Side, object] = {"outbox": s.outbox_enabled, "inbox": s.consumers}
    return [side for side in works if works[side]]


@dataclass(slots=True, kw_only=True)
class Parts:
    """The parts of one worker; ``stack`` closes what was opened, in reverse order."""

    settings: Settings
    name: str
    events: Events
    metrics: Metrics
    stop: asyncio.Event
    stack: AsyncExitStack
    readiness: Readiness = field(default_factory=Readiness)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Callable[[], float] = monotonic_seconds
    random: Callable[[], float] = random.random
    session: PostgresWorkerSession | None = None

    def report(self, key: str, text: str) -> None:
        """Report what a part says of itself, by the key of the event."""
        self.events.emit(key, text=text)

    # --- Connections.

    async def connect(self, connect_once: Callable[[], Awaitable[_T]], what: str) -> _T:
        """Retry until the server answers, and report each failure; ContractError: it refuses for good."""

        def report(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            self.events.emit("waiting", text=f"waiting for {what}: {error}")

        async def attempt() -> _T:  # tenacity awaits only what is declared async
            return await connect_once()

        return await tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(UnavailableError),
            wait=tenacity.wait_random_exponential(multiplier=_CONNECT_SECONDS, max=_CONNECT_MAX_SECONDS),
            before_sleep=report,
        )(attempt)

    async def pool(self, purpose: str) -> "asyncpg.Pool":
        """Open a pool for one side; its connections belong to the worker's session."""
        join = self.session.join if self.session is not None else None
        pool = await self.connect(lambda: open_pool(self.settings, purpose=purpose, join=join), "PostgreSQL")
        self.stack.push_async_callback(pool.close)
        return pool

    async def nats(self, purpose: str) -> "NatsConnection":
        """Open a connection for one side, which readiness watches."""

        def report(event: str, text: str) -> None:
            self.events.emit(f"nats_{event}", text=f"{purpose}: {text}".strip(": "))

        connection = await self.connect(
            lambda: open_nats(self.settings, purpose=purpose, on_event=report), "NATS"
        )
        self.stack.push_async_callback(connection.close)
        self.readiness.check(
            f"nats {purpose}", lambda: connection.trouble, broken_seconds=lambda: connection.refused_seconds
        )
        return connection

    # --- The session in PostgreSQL, by which others see when this worker has ended.

    async def begin_session(self) -> None:
        """Begin the session, except behind a pooler, which gives the worker no session of its own.

        A worker without one works as well: its leases end by their time alone.
        """
        s = self.settings
        if s.database_pooler or not sides_of(s):
            return

        def report(event: str, text: str) -> None:
            if event == "session_lost" and self.stop.is_set():
                self.events.emit("session_ended", text="the worker is stopping and needs it no more")
            else:
                self.events.emit(event, text=text)

        self.session = PostgresWorkerSession(
            dsn=s.database_url.get_secret_value(),
            schema=s.database_schema,
            worker=self.name,
            sides=sides_of(s),
            silent_seconds=max(s.outbox_lease_seconds, s.inbox_lease_seconds),
            on_event=report,
            clock=self.clock,
        )
        self.stack.push_async_callback(self.session.close)
        await self.session.start()

    @property
    def session_id(self) -> str:
        """The part of the tokens that says whose leases they are; empty without a session."""
        return self.session.id if self.session is not None else ""

    @property
    def session_lost_since(self) -> Callable[[float], bool]:
        """Tells whether others may have taken this worker for gone since a moment."""
        return self.session.lost_since if self.session is not None else lambda _moment: False

    # --- Circuits.

    def breaker(self, name: str, *, cap_seconds: float = _PROBE_MAX_SECONDS) -> CircuitBreaker:
        """Make a circuit breaker that readiness watches; it probes at least every ``cap_seconds``."""
        backoff = self.backoff(_PROBE_SECONDS, cap_seconds)
        breaker = CircuitBreaker(name=name, backoff=backoff, events=self.events, clock=self.clock)
        self.readiness.watch(breaker)
        return breaker

    def backoff(self, base_seconds: float, cap_seconds: float) -> Backoff:
        return Backoff(base_seconds=base_seconds, cap_seconds=cap_seconds, random=self.random)
