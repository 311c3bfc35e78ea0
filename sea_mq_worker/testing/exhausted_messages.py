"""In-memory fake of the exhausted messages: those that in-memory consumers stopped delivering."""

import asyncio
from collections.abc import Callable, Sequence

from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.testing.consumer import InMemoryConsumer


class InMemoryExhaustedMessages:
    """Messages that a consumer gave up, again and again until they are settled.

    Args:
        consumer: the one that gave up.
        clock: seconds; only differences count.
        again_seconds: when a message that was not settled is returned again.
        wait_seconds: how long a fetch waits.
    """

    def __init__(
        self,
        *,
        consumer: InMemoryConsumer,
        clock: Callable[[], float],
        again_seconds: float = 120.0,
        wait_seconds: float = 5.0,
    ) -> None:
        self._consumer = consumer
        self._clock = clock
        self._again_seconds = again_seconds
        self._wait_seconds = wait_seconds
        self._due_at: dict[int, float] = {}

    async def fetch(self) -> Sequence[InboundMessage]:
        """Return what was given up, or none after a bounded wait."""
        found = self._due()
        if not found:
            self._consumer.became_exhausted.clear()
            try:
                await asyncio.wait_for(self._consumer.became_exhausted.wait(), self._wait_seconds)
            except TimeoutError:
                return []
        return found or self._due()

    async def ack(self, msg: InboundMessage) -> None:
        """Forget a message that the inbox has accounted for."""
        self._forget(msg.seq)

    async def nak(self, msg: InboundMessage, *, delay_seconds: float) -> None:
        """Return it again after a delay."""
        if msg.seq in self._consumer.exhausted_deliveries:
            self._due_at[msg.seq] = self._clock() + delay_seconds
            self._consumer.became_exhausted.set()

    async def in_progress(self, msg: InboundMessage) -> None:
        """Return it again later."""
        await self.nak(msg, delay_seconds=self._again_seconds)

    def _due(self) -> list[InboundMessage]:
        now = self._clock()
        found = []
        for seq, deliveries in list(self._consumer.exhausted_deliveries.items()):
            if self._due_at.get(seq, now) > now:
                continue
            message = self._consumer.message(seq, deliveries=deliveries)
            if message is None:
                self._forget(seq)
                continue
            self._due_at[seq] = now + self._again_seconds
            found.append(message)
        return found

    def _forget(self, seq: int) -> None:
        self._consumer.exhausted_deliveries.pop(seq, None)
        self._due_at.pop(seq, None)
