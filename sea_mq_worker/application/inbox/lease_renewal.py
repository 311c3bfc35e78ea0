"""Renewal of processing leases in the inbox while their messages are handled."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, call_when_available
from sea_mq_worker.application.inbox.receiving import InFlightMessage
from sea_mq_worker.application.row_isolation import RowIsolator
from sea_mq_worker.domain.errors import DependencyError
from sea_mq_worker.domain.inbox_results import Lease, Leased
from sea_mq_worker.ports.inbox import InboxRepository

_EXTENSIONS_PER_LEASE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewal:
    """Renews the leases of in-flight messages, and knows which of them certainly still hold.

    Attributes:
        clock: monotonic seconds.
        lease_seconds: processing lease in the inbox.
        session_lost_since: whether others may have taken the worker, and its leases, for gone since a time.
    """

    inbox: InboxRepository
    store_breaker: CircuitBreaker
    clock: Callable[[], float]
    lease_seconds: float
    session_lost_since: Callable[[float], bool]

    def start(self, item: InFlightMessage) -> None:
        """Count a new lease from when its message was received, which is before the inbox gave it."""
        item.leased_until = item.received_at + self.lease_seconds

    async def renew(self, items: Iterable[InFlightMessage]) -> None:
        """Extend all leases in one statement; a failure opens the circuit of the database."""
        try:
            await self._extend([(item, item.run) for item in items if item.run is not None])
        except DependencyError as error:
            self.store_breaker.record_exception(error)

    async def still_leased(self, item: InFlightMessage, run: Leased, stop: asyncio.Event) -> bool:
        """Return whether this worker still holds the lease.

        Query the database only after a missed renewal, or where the lease is older than a lost session.

        Raises:
            StoppedError: the worker stopped while the database was away.
        """
        confirmed_at = item.leased_until - self.lease_seconds
        if self.clock() >= item.leased_until or self.session_lost_since(confirmed_at):
            await call_when_available(
                lambda: self._extend([(item, run)]), breaker=self.store_breaker, stop=stop
            )
        return self.clock() < item.leased_until

    async def _extend(self, held: Sequence[tuple[InFlightMessage, Leased]]) -> None:
        if not held:
            return
        began = self.clock()
        isolator = RowIsolator(
            [run.lease for _, run in held],
            lambda part: self.inbox.extend(part, lease_seconds=self.lease_seconds),
        )
        await isolator.run()
        extended = frozenset().union(*(answer for _, answer in isolator.answers))
        for item, run in held:
            item.leased_until = began + self.lease_seconds if run.lease.message_id in extended else began


@contextlib.asynccontextmanager
async def renewing_lease(
    inbox: InboxRepository, lease: Lease, *, lease_seconds: float
) -> AsyncIterator[None]:
    """Extend one lease for the length of a block; retry a little later where the database does not do it."""

    async def extend() -> None:
        while True:
            await asyncio.sleep(lease_seconds / _EXTENSIONS_PER_LEASE)
            with contextlib.suppress(DependencyError):
                await inbox.extend([lease], lease_seconds=lease_seconds)

    extending = asyncio.create_task(extend())
    try:
        yield
    finally:
        extending.cancel()
        await asyncio.gather(extending, return_exceptions=True)
