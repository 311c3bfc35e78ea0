"""Messages that the server gave up on: dead-lettered as EXHAUSTED unless the inbox has settled them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sea_mq_worker.application.burial import Burial
from sea_mq_worker.application.gate import Gate
from sea_mq_worker.application.pacing import StoppedError, unless_stopped
from sea_mq_worker.application.patience import patiently
from sea_mq_worker.application.reception import InHand, Reception
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.domain.messages import DeadLetter, InboundMessage
from sea_mq_worker.domain.outcomes import DeadLettered
from sea_mq_worker.domain.receipts import Busy, Conflict, Done, Receipt, Run, Unwritable
from sea_mq_worker.ports.jetstream import StrandedMessages


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescuer:
    """The loop beside an InboxConsumer that nothing slips past."""

    stranded: StrandedMessages
    reception: Reception
    burial: Burial
    broker_gate: Gate
    clock: Callable[[], float]

    async def run(self, stop: asyncio.Event) -> None:
        """Work until asked to stop."""
        while not stop.is_set():
            try:
                fetching = patiently(self.stranded.fetch, gate=self.broker_gate, stop=stop)
                for message in await unless_stopped(stop, fetching):
                    await self._rescue(message, stop)
            except StoppedError:
                return

    async def _rescue(self, message: InboundMessage, stop: asyncio.Event) -> None:
        item = self.reception.take(message, received_at=self.clock())
        receipt: Receipt = (await self.reception.record([item], stop))[0]
        match receipt:
            case Run():
                ending = await self.burial.bury(_letter(item, receipt), receipt, stop)
                if isinstance(ending, DeadLettered):
                    await self.stranded.settle(message)
            case Done():
                await self.stranded.settle(message)
            case Busy() | Conflict() | Unwritable():
                pass  # somebody works on it now; it is found again if that comes to nothing


def _letter(item: InHand, run: Run) -> DeadLetter:
    reason, detail = str(Reason.EXHAUSTED), "the server's max_deliver is spent"
    if item.refusal is not None:
        reason, detail = item.refusal.reason, item.refusal.detail
    return DeadLetter(
        message_id=run.lease.message_id,
        original_subject=item.message.subject,
        reason=reason,
        attempts=max(run.attempts - 1, item.message.deliveries),
        detail=detail,
        source=item.message,
    )
