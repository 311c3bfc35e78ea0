"""Leases of messages in the inbox: taken before the handler is called (CMD-051), renewed while it works."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, call_when_available
from sea_mq_worker.application.inbox.in_flight import InFlightMessage
from sea_mq_worker.application.row_isolation import RowIsolator, report_refused, write_isolated
from sea_mq_worker.domain.dead_letters import Reason, conflict_detail
from sea_mq_worker.domain.errors import DependencyError
from sea_mq_worker.domain.inbound import InvalidMessage, storage_id
from sea_mq_worker.domain.inbox_results import ContentConflict, Lease, Leased, Receipt, Unwritable
from sea_mq_worker.ports.inbox import InboxRepository
from sea_mq_worker.ports.observer import Observer

_EXTENSIONS_PER_LEASE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxLeases:
    """Leases messages before their bodies are read, and knows which leases certainly still hold.

    Attributes:
        clock: monotonic seconds.
        lease_seconds: processing lease in the inbox.
        session_lost_since: whether others may have taken the worker, and its leases, for gone since a time.
    """

    inbox: InboxRepository
    store_breaker: CircuitBreaker
    observer: Observer
    clock: Callable[[], float]
    lease_seconds: float
    session_lost_since: Callable[[float], bool]

    async def record(self, items: Sequence[InFlightMessage], stop: asyncio.Event) -> list[Receipt]:
        """Lease a batch; a message whose id is known with another content gets an id of its own.

        Raises:
            StoppedError: the worker stopped while the database was away.
        """
        receipts = await self.lease(items, stop)
        conflicting = [
            item
            for item, receipt in zip(items, receipts, strict=True)
            if isinstance(receipt, ContentConflict)
        ]
        if not conflicting:
            return receipts
        for item in conflicting:
            detail = conflict_detail(item.entry.message_id)
            item.refuse(InvalidMessage(storage_id(item.message), Reason.CONTENT_CONFLICT, detail))
        again = iter(await self.lease(conflicting, stop))
        return [next(again) if isinstance(receipt, ContentConflict) else receipt for receipt in receipts]

    async def lease(self, items: Sequence[InFlightMessage], stop: asyncio.Event) -> list[Receipt]:
        """Record messages in one round trip, as they are, and lease those that must be handled.

        Raises:
            StoppedError: the worker stopped while the database was away.
        """
        isolator = await write_isolated(items, self._write, breaker=self.store_breaker, stop=stop)
        receipts: dict[InFlightMessage, Receipt] = {
            item: receipt
            for part, answer in isolator.answers
            for item, receipt in zip(part, answer, strict=True)
        }
        for item, error in isolator.refused:
            report_refused(self.observer, f"message {item.entry.message_id}", error)
            receipts[item] = Unwritable()
        for item, receipt in receipts.items():
            item.run = receipt if isinstance(receipt, Leased) else None
            # The inbox gave the lease after the message was received.
            item.leased_until = item.received_at + self.lease_seconds
        return [receipts[item] for item in items]

    async def renew(self, items: Iterable[InFlightMessage]) -> None:
        """Extend all leases in one statement; a failure opens the circuit of the database."""
        try:
            await self._extend([(item, item.run) for item in items if item.run is not None])
        except DependencyError as error:
            self.store_breaker.record_exception(error)

    def may_hold(self, item: InFlightMessage) -> bool:
        """Return whether the worker's own lease may still last, as far as PostgreSQL confirmed it.

        A message that PostgreSQL has not recorded yet is kept for as long as a lease.
        """
        until = item.leased_until if item.run is not None else item.received_at + self.lease_seconds
        return self.clock() < until

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

    async def _write(self, items: Sequence[InFlightMessage]) -> Sequence[Receipt]:
        return await self.inbox.insert_batch([item.entry for item in items], lease_seconds=self.lease_seconds)

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
