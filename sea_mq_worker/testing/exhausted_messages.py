"""In-memory fake of the exhausted messages: those that in-memory consumers stopped delivering."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.testing.consumer import InMemoryConsumer


@dataclass(kw_only=True, eq=False)
class InMemoryExhaustedMessages:
    """Messages that a consumer gave up, again and again until they are settled.

    Attributes:
        consumer: the one that gave up.
        clock: seconds; only differences count.
        again_seconds: when a message that was not settled is returned again.
        wait_seconds: how long a fetch waits.
    """

    consumer: InMemoryConsumer
    clock: Callable[[], float]
    again_seconds: float = 120.0
    wait_seconds: float = 5.0
    _due_at: dict[int, float] = field(default_factory=dict)

    async def fetch(self) -> Sequence[InboundMessage]:
        """Return what was given up, or none after a bounded wait."""
        found = self._due()
        if not found:
            self.consumer.became_exhausted.clear()
            try:
                await asyncio.wait_for(self.consumer.became_exhausted.wait(), self.wait_seconds)
            except TimeoutError:
                return []
        return found or self._due()

    async def ack(self, msg: InboundMessage) -> None:
        """Forget a message that the inbox has accounted for."""
        self._forget(msg.seq)

    async def nak(self, msg: InboundMessage, *, delay_seconds: float = 0.0) -> None:
        """Return it again after a delay."""
        if msg.seq in self.consumer.exhausted_deliveries:
            self._due_at[msg.seq] = self.clock() + delay_seconds
            self.consumer.became_exhausted.set()

    async def in_progress(self, msg: InboundMessage) -> None:
        """Return it again later."""
        await self.nak(msg, delay_seconds=self.again_seconds)

    def _due(self) -> list[InboundMessage]:
        now = self.clock()
        found = []
        for seq, deliveries in list(self.consumer.exhausted_deliveries.items()):
            if self._due_at.get(seq, now) > now:
                continue
            message = self.consumer.message(seq, deliveries=deliveries)
            if message is None:
                self._forget(seq)
                continue
            self._due_at[seq] = now + self.again_seconds
            found.append(message)
        return found

    def _forget(self, seq: int) -> None:
        self.consumer.exhausted_deliveries.pop(seq, None)
        self._due_at.pop(seq, None)
