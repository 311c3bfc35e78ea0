"""Recording a received batch in the inbox (CMD-051) before anybody is asked about it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from sea_mq_worker.application.gate import Gate
from sea_mq_worker.application.patience import patiently
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.domain.envelopes import Invalid, Valid, content_hash, open_envelope, storage_id
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.receipts import Conflict, InboxEntry, Receipt, Run
from sea_mq_worker.ports.inbox import InboxRepository


@dataclass(slots=True, kw_only=True, eq=False)
class InHand:
    """A message that was fetched and not yet settled; compared by identity."""

    message: InboundMessage
    envelope: Valid | Invalid
    received_at: float
    run: Run | None = None
    """The lease, once the inbox has given it to us."""
    leased_until: float = 0.0
    """Until then the lease is ours for certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """Opens envelopes and leases the messages in one round trip a batch."""

    inbox: InboxRepository
    store_gate: Gate
    lease_seconds: float

    def take(self, message: InboundMessage, *, received_at: float) -> InHand:
        """Open a message's envelope."""
        return InHand(message=message, envelope=open_envelope(message), received_at=received_at)

    async def record(self, items: Sequence[InHand], stop: asyncio.Event) -> list[Receipt]:
        """Record a batch; a message whose id is known with another content is recorded under its own.

        Raises:
            StoppedError: asked to stop while the database was away.
        """
        receipts = await self._insert(items, stop)
        conflicting = [
            item for item, receipt in zip(items, receipts, strict=True) if isinstance(receipt, Conflict)
        ]
        if not conflicting:
            return receipts
        for item in conflicting:
            detail = f"message id {item.envelope.message_id} is known with another content"
            item.envelope = Invalid(storage_id(item.message), Reason.CONTENT_CONFLICT, detail)
        again = iter(await self._insert(conflicting, stop))
        return [next(again) if isinstance(receipt, Conflict) else receipt for receipt in receipts]

    async def _insert(self, items: Sequence[InHand], stop: asyncio.Event) -> list[Receipt]:
        entries = [_entry(item) for item in items]
        receipts = await patiently(
            lambda: self.inbox.insert(entries, lease_seconds=self.lease_seconds),
            gate=self.store_gate,
            stop=stop,
        )
        for item, receipt in zip(items, receipts, strict=True):
            item.run = receipt if isinstance(receipt, Run) else None
        return list(receipts)


def _entry(item: InHand) -> InboxEntry:
    return InboxEntry(
        message_id=item.envelope.message_id,
        subject=item.message.subject,
        consumer=item.message.consumer,
        stream=item.message.stream,
        stream_seq=item.message.seq,
        content_hash=content_hash(item.message),
    )
