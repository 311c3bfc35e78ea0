"""Recording of received messages in the inbox (CMD-051), before the handler is called."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.row_isolation import report_refused, write_isolated
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
    """Inbox entry, made without reading the body."""
    received_at: float
    size: int
    """Bytes in memory."""
    refusal: InvalidMessage | None = None
    """Reason why it cannot be handled, as far as that is known without reading the body."""
    run: Leased | None = None
    """The lease, once the inbox has given one to this worker."""
    leased_until: float = 0.0
    """Time until which this worker certainly holds the lease."""
    settler: Settler | None = None
    """Receiver of acknowledgements, where that is not the consumer."""

    @classmethod
    def of(cls, message: InboundMessage, *, received_at: float) -> Self:
        """Identify a fetched message by its headers."""
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
            reply=message.reply,
        )
        return cls(message=message, entry=entry, received_at=received_at, size=message.size, refusal=refusal)

    def refuse(self, refusal: InvalidMessage) -> None:
        """Mark the message as invalid, and record it under the refusal's id from now on."""
        self.refusal = refusal
        self.entry = self.entry._replace(message_id=refusal.message_id)

    def open(self) -> ParsedMessage | InvalidMessage:
        """Parse the body; call this only after the attempt is counted, for a body may kill the process."""
        return self.refusal or parse_message(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRecorder:
    """Leases a batch of messages in one round trip, before their bodies are read."""

    inbox: InboxRepository
    store_breaker: CircuitBreaker
    observer: Observer
    lease_seconds: float

    async def record(self, items: Sequence[InFlightMessage], stop: asyncio.Event) -> list[Receipt]:
        """Record a batch; a message whose id is known with another content gets an id of its own.

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
        """Record messages as they are, and lease those that must be handled.

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
        return [receipts[item] for item in items]

    async def _write(self, items: Sequence[InFlightMessage]) -> Sequence[Receipt]:
        return await self.inbox.insert([item.entry for item in items], lease_seconds=self.lease_seconds)
