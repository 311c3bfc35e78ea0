"""One worker's connections: a call travels to a server, takes effect there, and the answer travels back.

What can go wrong on the way does: the call never arrives, arrives late, or its answer is lost. The effect is
the server's, so it also takes place while the caller is frozen, and may after the caller was killed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar, cast

from sea_mq_worker.errors import BrokerUnavailableError, StoreUnavailableError
from sea_mq_worker.inbox.message import HandlerRequest, HandlerResult, Lease, NotDelivered
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.operators.tables import SQL
from sea_mq_worker.outbox.event import WHOLE, Claim, Died, Postponed, Published, Reaped, Released, Share
from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from sea_mq_worker.ports import InboxRepository, OtherSession
from sea_mq_worker.runtime.waiting import sleep_or_stop
from sea_mq_worker.testing.inbox import InMemoryInbox
from sea_mq_worker.testing.outbox import InMemoryOutbox
from tests.simulation.inbox_audit import InboxAudit
from tests.simulation.loop import SeededLoop
from tests.simulation.outbox_audit import OutboxAudit
from tests.simulation.postgres import PostgresServers, Table
from tests.simulation.run import FaultSchedule, Life
from tests.simulation.servers import Servers, run_now

T = TypeVar("T")

STORE_TIMEOUT = 4.0
LATE_SECONDS_MAX = 10.0


class Line:
    """What the wires of one worker share."""

    def __init__(self, *, loop: SeededLoop, servers: Servers, faults: FaultSchedule, life: Life) -> None:
        self.loop = loop
        self.servers = servers
        self.faults = faults
        self.life = life
        self.under_way = 0
        self.statements = 0

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """Do something in the world after a while; nothing is at rest before it is done."""
        self.under_way += 1

        def act() -> None:
            self.under_way -= 1
            do()

        self.loop.in_world(act, after=seconds)

    def arrives(self) -> bool:
        """Tell whether something sent before still takes effect: not always when its sender was killed."""
        return not self.life.dead or self.faults.chance(0.5)

    def tell(self, text: str) -> None:
        self.servers.report.tell(self.loop.time(), f"{self.life.name} {text}")

    async def ask(self, question: Callable[[], T], *, is_lost: Callable[[], bool] = bool) -> T:
        """Ask the broker or the handler; a question that is lost breaks the connection."""
        reply: asyncio.Future[T] = self.loop.create_future()

        def arrive() -> None:
            if is_lost():
                broken(reply)
            else:
                found = question()
                self.later(self.faults.latency(), lambda: answer(reply, found))

        self.later(self.faults.latency(), arrive)
        return await reply

    async def store(self, name: str, effect: Callable[[], T]) -> T:
        """Run a statement; StoreUnavailableError: it did not take effect, or did, or will."""
        faults, life = self.faults, self.life
        reply: asyncio.Future[T] = self.loop.create_future()
        if faults.hits("store refuses") or not (life.session is None or life.session.is_connected):
            life.hurt = True
            self.tell(f"{name} is refused")
            self.later(faults.latency(), lambda: _no_store(reply, "the database is away"))
            return await reply
        self.statements += 1
        if faults.hits("store forgets to answer", life):
            life.hurt = True
            self.servers.report.saw("unknown commit")
            self.later(faults.latency(), lambda: self._run(name, effect, None))
            self.later(faults.between(0.3, STORE_TIMEOUT), lambda: _no_store(reply, "no answer"))
        elif faults.hits("store is late", life):
            life.hurt = True
            gave_up = faults.between(0.0, STORE_TIMEOUT)
            self.later(gave_up, lambda: _no_store(reply, "time-out"))
            self.later(gave_up + faults.between(0.0, LATE_SECONDS_MAX), lambda: self._late(name, effect))
        else:
            self.later(faults.latency(), lambda: self._run(name, effect, reply))
        return await reply

    def _late(self, name: str, effect: Callable[[], T]) -> None:
        self.servers.report.saw("late commit")
        self._run(f"{name}, late", effect, None)

    def _run(self, name: str, effect: Callable[[], T], reply: asyncio.Future[T] | None) -> None:
        if reply is not None and not self.arrives():
            if self.faults.chance(0.5):  # blocked by a lock: nobody tells the server that its client is gone
                self.later(self.faults.between(0.0, LATE_SECONDS_MAX), lambda: self._late(name, effect))
            else:
                self.statements -= 1
            return
        result = effect()
        self.statements -= 1
        self.tell(f"{name} -> {_short(result)}")
        if reply is not None:
            self.later(self.faults.latency(), lambda: answer(reply, result))


def answer(reply: asyncio.Future[T], result: T) -> None:
    """Answer who still waits."""
    if not reply.done():
        reply.set_result(result)


def broken(reply: asyncio.Future[Any]) -> None:
    """Break the connection of who still waits."""
    if not reply.done():
        reply.set_exception(BrokerUnavailableError("the connection broke"))


def _no_store(reply: asyncio.Future[Any], text: str) -> None:
    if not reply.done():
        reply.set_exception(StoreUnavailableError(text))


def _short(result: object) -> str:
    match result:
        case Claim():
            return f"claim of {[event.seq for event in result.events]}"
        case list():
            return f"{len(result)} rows"
        case frozenset():
            return f"{len(result)} kept"
        case _:
            return str(result)


class OutboxWire:
    """OutboxRepository over a line."""

    def __init__(self, line: Line, twin: InMemoryOutbox, audit: OutboxAudit) -> None:
        self._line = line
        self._twin = twin
        self._audit = audit

    @property
    def has_freed(self) -> bool:
        return self._twin.has_freed

    async def find_unpublished(
        self, *, following: Sequence[Claim] = (), share: Share = WHOLE, **limits: int
    ) -> Claim:
        find = partial(self._twin.find_unpublished, following=following, share=share, **limits)
        claim = await self._call("find_unpublished", find)
        ahead = {event.ordering_key for earlier in following for event in earlier.events}
        if any(event.ordering_key in ahead for event in claim.events):
            self._line.servers.report.saw("claim followed another")
        if claim.events and share.workers > 1:
            self._line.servers.report.saw("keys divided")
        return claim

    async def mark_published_batch(self, claim: Claim, verdicts: Sequence[Published]) -> frozenset[str]:
        return await self._call(
            "mark_published", partial(self._twin.mark_published_batch, claim, verdicts), claim
        )

    async def increment_attempts_batch(
        self, claim: Claim, verdicts: Sequence[Postponed | Died]
    ) -> frozenset[str]:
        if any(isinstance(v, Postponed) and v.error.startswith("the replay waits") for v in verdicts):
            self._line.servers.report.saw("replay deferred")
        settle = partial(self._twin.increment_attempts_batch, claim, verdicts)
        return await self._call("increment_attempts", settle, claim)

    async def release(self, claim: Claim, verdicts: Sequence[Released]) -> frozenset[str]:
        life = self._line.life
        if life.stop.is_set():
            self._line.servers.report.saw("released on stop")
        if 0.0 <= self._audit.granted(life, verdicts[0].event.id) <= life.frozen_at:
            self._line.servers.report.saw("thawed zombie sent nothing")
        return await self._call("release", partial(self._twin.release, claim, verdicts), claim)

    async def reap(self) -> Reaped:
        reaped = await self._call("reap", self._twin.reap)
        if reaped.leases:
            self._line.servers.report.saw("lease reaped")
        return reaped

    async def take_over(self, session: str) -> int:
        count = await self._call("take_over", lambda: self._twin.take_over(session))
        if count:
            self._line.servers.report.saw("events taken over")
        return count

    async def _call(
        self, name: str, call: Callable[[], Coroutine[Any, Any, T]], claim: Claim | None = None
    ) -> T:
        life = self._line.life
        return await self._line.store(
            name, lambda: self._audit.effect(life, name, lambda: run_now(call()), claim)
        )


class InboxWire:
    """A port over the inbox's table on a line: each of its calls is a statement."""

    def __init__(self, line: Line, twin: object, audit: InboxAudit) -> None:
        self._line = line
        self._twin = twin
        self._audit = audit

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._twin, name)
        name = name.removesuffix("_batch")

        async def statement(*args: Any, **given: Any) -> Any:
            answer = await self._call(name, partial(method, *args, **given), _leases_in(args))
            if name == "insert":
                self._audit.given(answer)
            elif name == "take_over" and answer:
                self._line.servers.report.saw("messages taken over")
            return answer

        return statement

    async def _call(
        self, name: str, call: Callable[[], Coroutine[Any, Any, T]], leases: Sequence[Lease] = ()
    ) -> T:
        life = self._line.life
        return await self._line.store(
            name, lambda: self._audit.effect(life, name, lambda: run_now(call()), leases)
        )


def _leases_in(args: Sequence[object]) -> list[Lease]:
    """Return the leases that the first argument of a statement names."""
    match args:
        case [Lease() as lease, *_]:
            return [lease]
        case [[*items], *_]:
            named = (item if isinstance(item, Lease) else item[0] for item in items)
            return [lease for lease in named if isinstance(lease, Lease)]
        case _:
            return []


class HandlerWire:
    """EventHandler over a line; a call that arrived goes on whatever becomes of the caller."""

    def __init__(self, line: Line, audit: InboxAudit) -> None:
        self._line = line
        self._audit = audit

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        line = self._line
        self._audit.calling(line.life, request)
        reply: asyncio.Future[HandlerResult] = line.loop.create_future()
        line.later(line.faults.latency(), lambda: line.loop.world_task(self._serve(request, reply)))
        return await reply

    async def reach(self) -> NotDelivered | None:
        def look() -> NotDelivered | None:
            is_away = self._line.servers.handler_trouble() == "handler unreachable"
            return NotDelivered("the handler cannot be reached") if is_away else None

        return await self._line.ask(look)

    async def _serve(self, request: HandlerRequest, reply: asyncio.Future[HandlerResult]) -> None:
        line = self._line
        line.under_way += 1
        result: HandlerResult = NotDelivered("the caller is gone")
        if line.arrives():
            result = await line.servers.handler.handle_request(request)
        line.under_way -= 1
        self._audit.called(line.life, request, result)
        line.tell(f"handler: {request.message_id[:8]} -> {result}")
        line.later(line.faults.latency(), lambda: answer(reply, result))


_SIDES = ("outbox", "inbox")
_NEVER = float("-inf")


class SessionWire:
    """The session of one worker over its line: ``WorkerSessions``, and what the worker asks of its own."""

    def __init__(self, line: Line) -> None:
        self.id = f"{line.life.number:08x}"
        self.is_connected = True
        self._line = line
        self.lost_at = _NEVER
        self._change = asyncio.Event()
        line.servers.sessions[self.id] = self
        self.begin()

    @property
    def is_gone(self) -> bool:
        """Whether no connection of the worker is left."""
        life = self._line.life
        lives = self.is_connected and not life.dead and life.code is None
        return not lives and not self._line.statements

    def begin(self) -> None:
        """Connect, again after a loss."""
        self.is_connected = True
        servers = self._line.servers
        servers.session_rows |= {(self.id, side): self._line.life.name for side in _SIDES}
        for session in servers.sessions.values():
            session._change.set()

    def cut(self, seconds: float) -> None:
        """Lose all connections for a while; the worker notices at once."""
        line = self._line
        line.servers.report.saw("session lost")
        line.tell(f"has no connection to the database for {seconds} s")
        self.is_connected, line.life.hurt = False, True
        self.lost_at = line.life.clock()
        line.later(seconds, self.begin)

    def lost_since(self, moment: float) -> bool:
        """Return whether others may have taken this worker for gone since ``moment``."""
        return self.lost_at >= moment

    async def others(self) -> Sequence[OtherSession]:
        return await self._line.store("others", self._others)

    async def forget(self, session: OtherSession) -> None:
        await self._line.store("forget", lambda: self._forget(session))

    async def wait_for_change(self, *, timeout_seconds: float) -> None:
        await sleep_or_stop(self._change, seconds=timeout_seconds)
        self._change.clear()

    def _others(self) -> list[OtherSession]:
        servers = self._line.servers
        return [
            OtherSession(session, side, worker, servers.sessions[session].is_gone)
            for (session, side), worker in servers.session_rows.items()
            if session != self.id
        ]

    def _forget(self, session: OtherSession) -> None:
        if self._line.servers.sessions[session.session].is_gone:
            self._line.servers.session_rows.pop((session.session, session.side), None)


Effect: TypeAlias = Callable[[], Any]
Judge: TypeAlias = Callable[[Effect], Any]

_CALL: ContextVar[tuple[str, Judge]] = ContextVar("call")
"""Name of the repository's call that a statement belongs to, and the audit of its effect."""


class SimulatedPool:
    """As much of asyncpg's pool as the repositories use."""

    def __init__(self, line: Line, table: Table) -> None:
        self._line = line
        self._table = table

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Self]:
        yield self

    async def expire_connections(self) -> None:
        """Do nothing: a line does not keep connections."""

    async def fetch(self, statement: str, *args: object) -> Any:
        servers = cast("PostgresServers", self._line.servers)
        name, judge = _CALL.get()
        answer = await self._line.store(
            name, lambda: judge(lambda: servers.run(self._table, statement, args))
        )
        if isinstance(answer, Exception):
            raise answer
        return answer


class PostgresOutboxWire(OutboxWire):
    """``PostgresOutboxAdapter`` over a line."""

    def __init__(self, line: Line, audit: OutboxAudit, **options: Any) -> None:
        pool = cast("Any", SimulatedPool(line, "outbox"))
        adapter = PostgresOutboxAdapter(pool=pool, clock=line.loop.time, **options)
        super().__init__(line, cast("Any", adapter), audit)

    async def _call(
        self, name: str, call: Callable[[], Coroutine[Any, Any, T]], claim: Claim | None = None
    ) -> T:
        nth = 0

        def judge(effect: Effect) -> Any:
            nonlocal nth
            answer = self._audit.effect(self._line.life, name, effect, claim)
            nth = self._audit.calls
            return answer

        with _calling(name, judge):
            result = await call()
        if isinstance(result, Claim):
            self._audit.given(result, nth)
        return result


class PostgresInboxWire(InboxWire):
    """``PostgresInboxAdapter`` over a line."""

    def __init__(self, line: Line, audit: InboxAudit, adapter: Callable[..., object]) -> None:
        super().__init__(line, adapter(pool=SimulatedPool(line, "inbox")), audit)

    async def _call(
        self, name: str, call: Callable[[], Coroutine[Any, Any, T]], leases: Sequence[Lease] = ()
    ) -> T:
        with _calling(name, lambda effect: self._audit.effect(self._line.life, name, effect, leases)):
            return await call()


@contextmanager
def _calling(name: str, judge: Judge) -> Iterator[None]:
    before = _CALL.set((name, judge))
    try:
        yield
    finally:
        _CALL.reset(before)


def inbox_wire(line: Line, audit: InboxAudit, *, worker: str) -> InboxRepository:
    """Connect somebody to the inbox, the real one or the in-memory one."""
    if isinstance(line.servers, PostgresServers):
        return cast("Any", PostgresInboxWire(line, audit, partial(PostgresInboxAdapter, worker=worker)))
    session = line.life.session.id if line.life.session is not None else ""
    inbox = InMemoryInbox(table=line.servers.inbox, worker=worker, session=session)
    return cast("Any", InboxWire(line, inbox, audit))


class OperatorsPool(SimulatedPool):
    """The inbox as an operator's redrive uses it; ``run`` does what a statement does in memory."""

    def __init__(self, line: Line, audit: InboxAudit, run: Callable[..., Any]) -> None:
        super().__init__(line, "inbox")
        self._audit = audit
        self._run = run

    async def fetch(self, statement: str, *args: object) -> Any:
        """Run a statement over the line, under its name."""
        name = "redriven" if statement == SQL["redriven"].sql else "finish"
        servers = self._line.servers

        def effect() -> Any:
            if isinstance(servers, PostgresServers):
                return servers.run(self._table, statement, args)
            return self._run(statement, *args)

        answer = await self._line.store(name, lambda: self._audit.effect(self._line.life, name, effect))
        if isinstance(answer, Exception):
            raise answer
        return answer
