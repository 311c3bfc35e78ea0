"""Recording a received batch in the inbox (CMD-051) before anybody is asked about it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.retry_unavailable import call_when_available
from sea_mq_worker.application.row_isolation import RowIsolator, report_refused
from sea_mq_worker.domain.dead_letters import Reason, conflict_detail
from sea_mq_worker.domain.inbound import (
    InvalidMessage,
    ParsedMessage,
    content_hash,
    identify,
    parse_message,
    storage_id,
)
from sea_mq_worker.domain.inbox_results import ContentConflict, InboxEntry, Leased, Receipt, Unwritable
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.ports.inbox import InboxRepository
from sea_mq_worker.ports.jetstream import Settler
from sea_mq_worker.ports.observer import Observer


@dataclass(slots=True, kw_only=True, eq=False)
class InFlightMessage:
    """A message that was fetched and not yet settled; compared by identity."""

    message: InboundMessage
    entry: InboxEntry
    """How it is recorded; known without a look at the body."""
    received_at: float
    refusal: InvalidMessage | None = None
    """Why it cannot be handled, as far as that is known without a look at the body."""
    run: Leased | None = None
    """The lease, once the inbox has given it to us."""
    leased_until: float = 0.0
    """Until then the lease is ours for certain."""
    settler: Settler | None = None
    """Who hears of its ending, where that is not the consumer."""

    @classmethod
    def of(cls, message: InboundMessage, *, received_at: float) -> Self:
        """Take a message in hand."""
        identity = identify(message)
        refusal = identity if isinstance(identity, InvalidMessage) else None
        message_id = identity.message_id if isinstance(identity, InvalidMessage) else identity
        entry = InboxEntry(
            message_id=message_id,
            subject=message.subject,
            consumer=message.consumer,
            stream=message.stream,
            stream_seq=message.seq,
            content_hash=content_hash(message),
        )
        return cls(message=message, entry=entry, received_at=received_at, refusal=refusal)

    def refuse(self, refusal: InvalidMessage) -> None:
        """Know it from now on under the refusal's id."""
        self.refusal = refusal
        self.entry = self.entry._replace(message_id=refusal.message_id)

    def open(self) -> ParsedMessage | InvalidMessage:
        """Check the body too; call it only once the attempt is counted, for a body may kill the process."""
        return self.refusal or parse_message(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRecorder:
    """Leases messages in one round trip a batch, before anybody looks into their bodies."""

    inbox: InboxRepository
    store_breaker: CircuitBreaker
    observer: Observer
    lease_seconds: float

    def take(self, message: InboundMessage, *, received_at: float) -> InFlightMessage:
        """Take a message in hand."""
        return InFlightMessage.of(message, received_at=received_at)

    async def record(self, items: Sequence[InFlightMessage], stop: asyncio.Event) -> list[Receipt]:
        """Record a batch; a message whose id is known with another content is recorded under its own.

        Raises:
            StoppedError: asked to stop while the database was away.
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
        """Record messages as they are, and lease what is to be handled.

        Raises:
            StoppedError: asked to stop while the database was away.
        """
        pieces = RowIsolator(items, self._write)
        await call_when_available(pieces.run, breaker=self.store_breaker, stop=stop)
        receipts: dict[InFlightMessage, Receipt] = {
            item: receipt
            for part, answer in pieces.answers
            for item, receipt in zip(part, answer, strict=True)
        }
        for item, error in pieces.refused:
            report_refused(self.observer, f"message {item.entry.message_id}", error)
            receipts[item] = Unwritable()
        for item, receipt in receipts.items():
            item.run = receipt if isinstance(receipt, Leased) else None
        return [receipts[item] for item in items]

    async def _write(self, items: Sequence[InFlightMessage]) -> Sequence[Receipt]:
        return await self.inbox.insert([item.entry for item in items], lease_seconds=self.lease_seconds)
