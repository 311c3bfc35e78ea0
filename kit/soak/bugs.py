"""Bugs for the negative control: typical mistakes of such workers, each of which must fail the soak."""

import uuid
from collections.abc import Callable
from typing import Any


def plant(name: str) -> None:
    """Plant a bug in this process's worker."""
    BUGS[name]()


def _ack_before_handling() -> None:
    """Acknowledge on receipt: a killed worker's messages are lost."""
    from sea_mq_worker.application.inbox.consumer import InboxConsumer  # noqa: PLC0415 - only in a worker

    honest = InboxConsumer._work

    async def work(self: Any, item: Any, run: Any, stop: Any) -> None:
        await self.consumer.ack(item.message)
        await honest(self, item, run, stop)

    InboxConsumer._work = work  # type: ignore[method-assign]


def _mark_before_publish() -> None:
    """Settle before publishing: events that cannot be published are lost."""
    from sea_mq_worker.application.outbox.publisher import OutboxPublisher  # noqa: PLC0415
    from sea_mq_worker.domain.outcomes import Published, Stored  # noqa: PLC0415

    async def publish(self: Any, claim: Any, claimed_at: float, stop: Any) -> bool:
        verdicts = [Published(event, Stored("SEA_EVENTS", 1)) for event in claim.events]
        await self.settlement.settle(self.outbox, claim, verdicts, claimed_at=claimed_at)
        await self.publishing.publish(claim.events, claimed_at=claimed_at, stop=stop)
        return False

    OutboxPublisher._publish = publish  # type: ignore[method-assign]


def _known_means_done() -> None:
    """Treat every known message as a duplicate: messages recorded by a killed worker are never handled."""
    from sea_mq_worker.adapters.postgres.inbox import PostgresInboxAdapter  # noqa: PLC0415
    from sea_mq_worker.domain.inbox_results import AlreadySettled, Leased  # noqa: PLC0415

    honest = PostgresInboxAdapter.insert

    async def insert(self: Any, entries: Any, *, lease_seconds: float) -> list[Any]:
        receipts = await honest(self, entries, lease_seconds=lease_seconds)
        return [AlreadySettled() if isinstance(r, Leased) and r.attempts > 1 else r for r in receipts]

    PostgresInboxAdapter.insert = insert  # type: ignore[method-assign]


def _new_id_for_each_attempt() -> None:
    """Publish a repetition under another message ID: the stream stores both copies."""
    from sea_mq_worker.application.outbox import batch_publisher  # noqa: PLC0415

    honest = batch_publisher.__dict__["outbound_message"]

    def message(event: Any, *, context: str, source: str) -> Any:
        made = honest(event, context=context, source=source)
        other = str(uuid.uuid4())
        return made._replace(id=other, headers={**made.headers, "Nats-Msg-Id": other})

    batch_publisher.__dict__["outbound_message"] = message


def _outage_kills() -> None:
    """Mark an event DEAD after its first attempt without a response, as in a short outage."""
    from sea_mq_worker.domain.outcomes import Died, Unknown  # noqa: PLC0415
    from sea_mq_worker.domain.retry import RetryPolicy  # noqa: PLC0415

    honest = RetryPolicy.judge

    def judge(self: Any, event: Any, outcome: Any) -> Any:
        return Died(event, outcome.reason) if isinstance(outcome, Unknown) else honest(self, event, outcome)

    RetryPolicy.judge = judge  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "ack-before-handling": _ack_before_handling,
    "mark-before-publish": _mark_before_publish,
    "known-means-done": _known_means_done,
    "new-id-for-each-attempt": _new_id_for_each_attempt,
    "outage-kills": _outage_kills,
}
