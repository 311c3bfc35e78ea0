"""Bugs for the negative control: typical mistakes of such workers, each of which must fail the soak.

Each is a call too many at a port of SDS-047, so the loops above may change as they like.
"""

from collections.abc import Callable, Sequence
from typing import Any


def plant(name: str) -> None:
    """Plant a bug in this process's worker."""
    BUGS[name]()


def _ack_before_handling() -> None:
    """Acknowledge on receipt: a killed worker's messages are lost."""
    from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer  # noqa: PLC0415 - only in a worker

    honest = NatsJetStreamConsumer.fetch

    async def fetch(self: NatsJetStreamConsumer, *args: Any, **given: Any) -> Sequence[Any]:
        messages = await honest(self, *args, **given)
        for message in messages:
            await self.ack(message)
        return messages

    NatsJetStreamConsumer.fetch = fetch  # type: ignore[method-assign]


def _mark_before_publish() -> None:
    """Settle before publishing: events that cannot be published are lost."""
    from sea_mq_worker.nats.message import Stored  # noqa: PLC0415
    from sea_mq_worker.outbox.event import Published  # noqa: PLC0415
    from sea_mq_worker.outbox.postgres import PostgresOutboxAdapter  # noqa: PLC0415

    honest = PostgresOutboxAdapter.find_unpublished

    async def find_unpublished(self: PostgresOutboxAdapter, **limits: Any) -> Any:
        claim = await honest(self, **limits)
        if claim.events:
            published = [Published(event, Stored("SEA_EVENTS", 1)) for event in claim.events]
            await self.mark_published_batch(claim, published)
        return claim

    PostgresOutboxAdapter.find_unpublished = find_unpublished  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "ack-before-handling": _ack_before_handling,
    "mark-before-publish": _mark_before_publish,
}
