"""The real repositories over a line: each of their statements can be refused, late, or lose its answer."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from sea_mq_worker.inbox.message import Lease
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.operators.ports import DeadLetterRecords
from sea_mq_worker.operators.tables import PostgresOperations
from sea_mq_worker.outbox.event import Claim
from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter
from sea_mq_worker.ports import InboxRepository
from sea_mq_worker.testing.inbox import InMemoryInbox
from sea_mq_worker.testing.operators import InMemoryDeadLetterRecords
from tests.simulation.inbox_audit import InboxAudit
from tests.simulation.outbox_audit import OutboxAudit
from tests.simulation.postgres import PostgresServers, Table
from tests.simulation.wires import InboxWire, Line, OutboxWire

T = TypeVar("T")

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
    async def acquire(self) -> AsyncIterator["SimulatedPool"]:
        yield self

    async def expire_connections(self) -> None:
        """Do nothing: a line does not keep connections."""

    async def fetch(self, statement: str, *args: object) -> Any:
        """Run a statement over the line.

        Raises:
            StoreUnavailableError: it did not take effect, or did, or will.
            PostgresError: the server refused it.
        """
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
    """``PostgresInboxAdapter``, or the operators' ``PostgresOperations``, over a line."""

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


def records_wire(line: Line, audit: InboxAudit) -> DeadLetterRecords:
    """Connect an operator to the same inbox."""
    if isinstance(line.servers, PostgresServers):
        return cast("Any", PostgresInboxWire(line, audit, PostgresOperations))
    return cast("Any", InboxWire(line, InMemoryDeadLetterRecords(table=line.servers.inbox), audit))
