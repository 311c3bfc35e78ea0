"""A lane of the outbox publisher on in-memory fakes, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sea_mq_worker.errors import StoreUnavailableError
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.publisher import OutboxPublisher
from sea_mq_worker.outbox.wakeup import PollingWakeup
from sea_mq_worker.testing.outbox import InMemoryOutbox, OutboxRow, OutboxTable
from sea_mq_worker.testing.stream import Fault, InMemoryPublisher, InMemoryStream
from sea_mq_worker.worker import publisher_lanes
from tests.support.loop_world import LoopWorld
from tests.support.simulation import Interrupted

LEASE = 60.0


class World(LoopWorld):
    """A relay's lane with everything around it.

    Attributes:
        faults: what goes wrong with a message, by event id.
        on_send: called with the event id of each message as it is sent.
    """

    def __init__(
        self,
        *,
        ordered: bool = False,
        hold_dead_keys: bool = False,
        keeps_order: bool = False,
        window: float = 3600.0,
        delay: float = 1.0,
    ) -> None:
        super().__init__(
            outbox_backoff_seconds=delay,
            outbox_batch_max=10,
            outbox_batches_max=1,
            outbox_bytes_max=2**22,
            outbox_dead_key="hold" if hold_dead_keys else "continue",
            outbox_failures_max=3,
            outbox_lease_seconds=LEASE,
            outbox_publish_timeout_seconds=10.0,
            database_timeout_seconds=30.0,
        )
        self.table = OutboxTable(self.clock)
        self.stream = InMemoryStream(name="SEA_EVENTS", clock=self.clock, duplicate_window_seconds=window)
        self.sent: list[str] = []
        self.faults: dict[str, Fault] = {}
        self.on_send: Callable[[str], None] = lambda _event_id: None
        fake = InMemoryPublisher(
            stream=self.stream, clock=self.clock, faults=self._meet, keeps_order=keeps_order
        )
        self.publisher: Any = fake
        self._ordered, self._hold_dead_keys = ordered, hold_dead_keys
        self.outbox: Any = Interrupted(self.outbox_of("w1"), StoreUnavailableError("the database is away"))
        self.share: Any = None

    def outbox_of(self, worker: str) -> InMemoryOutbox:
        return InMemoryOutbox(
            table=self.table,
            worker=worker,
            lease_seconds=LEASE,
            ordered=self._ordered,
            hold_dead_keys=self._hold_dead_keys,
            failures_max=3,
            random=lambda: 0.5,
        )

    def row(self, event_id: str) -> OutboxRow:
        return self.table.rows[event_id]

    def states(self) -> dict[str, str]:
        return {row.id: row.state.value for row in self.table.rows.values()}

    def stored(self) -> list[str]:
        return [entry.headers["Nats-Msg-Id"] for entry in self.stream.entries()]

    async def published(self, count: int) -> None:
        await self.events.seen("event_published", count=count, within=600.0)

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        """Run the lane for the length of a block, then stop it gracefully."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lane().run(self.stop))
            yield
            self.stop.set()

    def lane(self) -> OutboxPublisher:
        parts = self.parts()
        make = publisher_lanes(parts, self.publisher, parts.breaker("store"))
        lane = make(self.outbox, PollingWakeup(), keyed=self._ordered, share=self.share)
        return replace(lane, batch_bytes_max=2**20)

    def _meet(self, message: OutboundMessage) -> Fault:
        self.sent.append(message.id)
        self.on_send(message.id)
        return self.faults.get(message.id, Fault.NONE)
