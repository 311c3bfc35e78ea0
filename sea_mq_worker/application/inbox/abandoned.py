"""Deliveries of workers that have ended: their leases end, and the server delivers them again at once."""

from collections.abc import Mapping
from dataclasses import dataclass

from sea_mq_worker.application.waiting import IMMEDIATE_REDELIVERY_SECONDS
from sea_mq_worker.domain.retry import Backoff
from sea_mq_worker.ports.inbox import InboxRepository
from sea_mq_worker.ports.jetstream import JetStreamConsumer


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedDeliveries:
    """Takes over the messages of a worker that has ended.

    A message that was fetched and not recorded yet is in no row: the server delivers it again after ack_wait.

    Attributes:
        consumers: consumers of this worker by stream and name; other deliveries wait for their ack_wait.
        backoff: delay of a message that has ended more than one worker, or failed before. It separates a
            message that kills its worker from those that were in flight with it.
    """

    inbox: InboxRepository
    consumers: Mapping[tuple[str, str], JetStreamConsumer]
    backoff: Backoff

    async def take_over(self, session: str) -> int:
        """End the leases of a session that is gone, then request redelivery; return the number of leases."""
        abandoned = await self.inbox.take_over(session)
        for one in abandoned:
            consumer = self.consumers.get((one.stream, one.consumer))
            if consumer is not None and one.reply:
                again = one.attempts > 1
                delay = self.backoff.delay_seconds(one.attempts) if again else IMMEDIATE_REDELIVERY_SECONDS
                await consumer.give_back(one.reply, delay_seconds=delay)
        return len(abandoned)
