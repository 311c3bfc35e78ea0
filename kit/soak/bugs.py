"""Bugs for the negative control: typical mistakes of such workers, each of which must fail the soak."""

from collections.abc import Callable
from typing import Any


def plant(name: str) -> None:
    """Plant a bug in this process's worker."""
    BUGS[name]()


def _ack_before_handling() -> None:
    """Acknowledge on receipt: a killed worker's messages are lost."""
    from sea_mq_worker.inbox.consumer import InboxConsumer  # noqa: PLC0415 - only in a worker

    honest = InboxConsumer._work

    async def work(self: Any, item: Any, run: Any, stop: Any) -> None:
        await self.consumer.ack(item.message)
        await honest(self, item, run, stop)

    InboxConsumer._work = work  # type: ignore[method-assign]


def _mark_before_publish() -> None:
    """Settle before publishing: events that cannot be published are lost."""
    from sea_mq_worker.nats.message import Stored  # noqa: PLC0415
    from sea_mq_worker.outbox.event import Published  # noqa: PLC0415
    from sea_mq_worker.outbox.publisher import OutboxPublisher  # noqa: PLC0415

    async def publish(self: Any, claim: Any, claimed_at: float, stop: Any) -> bool:
        verdicts = [Published(event, Stored("SEA_EVENTS", 1)) for event in claim.events]
        await self.settlement.settle(self.outbox, claim, verdicts, claimed_at=claimed_at)
        await self.publishing.publish(claim.events, claimed_at=claimed_at, stop=stop)
        return False

    OutboxPublisher._publish = publish  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "ack-before-handling": _ack_before_handling,
    "mark-before-publish": _mark_before_publish,
}
