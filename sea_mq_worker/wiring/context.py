"""Parts that both sides of the worker share, and the worker's session in PostgreSQL."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import asyncpg
import tenacity

from sea_mq_worker.connections import open_nats, open_pool
from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.ports import Events
from sea_mq_worker.postgres.sessions import PostgresWorkerSession
from sea_mq_worker.runtime.breaker import Backoff, CircuitBreaker
from sea_mq_worker.runtime.supervisor import Readiness
from sea_mq_worker.runtime.takeover import Takeover
from sea_mq_worker.runtime.waiting import monotonic_seconds
from sea_mq_worker.settings import Settings
from sea_mq_worker.telemetry.metrics import Metrics

_CONNECT_WAIT_MAX_SECONDS = 5.0
_FIRST_PROBE_SECONDS = 0.2

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Shared collaborators; ``stack`` closes what was opened, in reverse order.

    Attributes:
        session: the worker's session in PostgreSQL; None behind a pooler.
        takeover: takes over from workers that have ended, for the sides added to it; None without a session.
    """

    settings: Settings
    name: str
    events: Events
    metrics: Metrics
    stop: asyncio.Event
    stack: AsyncExitStack
    readiness: Readiness = field(default_factory=Readiness)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Callable[[], float] = monotonic_seconds
    session: PostgresWorkerSession | None = None
    takeover: Takeover | None = None

    @property
    def session_id(self) -> str:
        """Return the part of the tokens that says whose leases they are; empty without a session."""
        return self.session.id if self.session is not None else ""

    def session_lost_since(self, moment: float) -> bool:
        """Return whether others may have taken this worker for gone since ``moment``."""
        return self.session is not None and self.session.lost_since(moment)

    async def connect(self, connect_once: Callable[[], Awaitable[_T]], what: str) -> _T:
        """Retry until the server answers, and report each failure.

        Raises:
            ContractError: the server refuses for good.
        """

        def report(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            self.events.emit("waiting", text=f"waiting for {what}: {error}")

        async def attempt() -> _T:  # tenacity awaits only what is declared async
            return await connect_once()

        return await tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(UnavailableError),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=_CONNECT_WAIT_MAX_SECONDS),
            before_sleep=report,
        )(attempt)

    async def pool(self, purpose: str) -> asyncpg.Pool:
        """Open a pool for one side; its connections belong to the worker's session."""
        join = self.session.join if self.session is not None else None
        pool = await self.connect(lambda: open_pool(self.settings, purpose=purpose, join=join), "PostgreSQL")
        self.stack.push_async_callback(pool.close)
        return pool

    def backoff(self, *, base_seconds: float, cap_seconds: float) -> Backoff:
        return Backoff(base_seconds=base_seconds, cap_seconds=cap_seconds, random=random.random)

    def breaker(self, name: str, *, cap_seconds: float) -> CircuitBreaker:
        """Make a circuit breaker that readiness watches; it probes at least every ``cap_seconds``."""
        backoff = self.backoff(base_seconds=_FIRST_PROBE_SECONDS, cap_seconds=cap_seconds)
        breaker = CircuitBreaker(name=name, backoff=backoff, events=self.events, clock=self.clock)
        self.readiness.watch(breaker)
        return breaker

    async def nats(self, purpose: str) -> NatsConnection:
        """Open a connection for one side, which readiness watches."""
        connection = await self.connect(
            lambda: open_nats(self.settings, purpose=purpose, on_event=self._event_logger(purpose)), "NATS"
        )
        self.stack.push_async_callback(connection.close)
        self.readiness.check(
            f"nats {purpose}", lambda: connection.trouble, broken_seconds=lambda: connection.refused_seconds
        )
        return connection

    def _event_logger(self, purpose: str) -> Callable[[str, str], None]:
        def log(event: str, text: str) -> None:
            self.events.emit(f"nats_{event}", text=f"{purpose}: {text}".strip(": "))

        return log


async def with_session(base: WorkerContext) -> WorkerContext:
    """Begin the session, except behind a pooler, which gives the worker no session of its own.

    A worker without one works as well: its leases end by their time alone.
    """
    s = base.settings
    sides = [side for side, works in (("outbox", s.outbox_enabled), ("inbox", s.consumers)) if works]
    if s.database_pooler or not sides:
        return base
    session = PostgresWorkerSession(
        dsn=s.database_url.get_secret_value(),
        schema=s.database_schema,
        worker=base.name,
        sides=sides,
        silent_seconds=max(s.outbox_lease_seconds, s.inbox_lease_seconds),
        on_event=partial(_report_session, base),
        clock=base.clock,
    )
    base.stack.push_async_callback(session.close)
    await session.start()
    return replace(base, session=session, takeover=Takeover(sessions=session, events=base.events))


def _report_session(base: WorkerContext, event: str, text: str) -> None:
    """Report trouble of the session; its end during a stop is none."""
    if event == "session_lost" and base.stop.is_set():
        base.events.emit("session_ended", text="the worker is stopping and needs it no more")
    else:
        base.events.emit(event, text=text)
