"""In-memory fake of the durable consumer: ack_wait, max_deliver and max_ack_pending over a stream in memory.

As on the server, an acknowledgement by any delivery's reply settles the message, a delayed NAK keeps its
place in max_ack_pending, and a message that reached max_deliver is given up when its time is over.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.testing.stream import InMemoryStream


@dataclass(frozen=True, slots=True)
class _Pending:
    """A delivered message; at ``due_at`` it is delivered again, or given up."""

    deliveries: int
    due_at: float


class InMemoryConsumer:
    """State of a durable consumer on the server; several workers may share it.

    Args:
        stream: source of the messages.
        name: the durable's name.
        clock: seconds; only differences count.
        ack_wait_seconds: how long a delivery stays unanswered before the next one.
        max_deliver: deliveries before a message is given up; -1 for no limit.
        max_ack_pending: deliveries that may be unanswered at a time.
        wait_seconds: how long a fetch waits for the first message.
    """

    def __init__(
        self,
        *,
        stream: InMemoryStream,
        name: str,
        clock: Callable[[], float],
        ack_wait_seconds: float = 120.0,
        max_deliver: int = 20,
        max_ack_pending: int = 50,
        wait_seconds: float = 5.0,
    ) -> None:
        self.ack_wait_seconds = ack_wait_seconds
        self.exhausted_deliveries: dict[int, int] = {}
        """Deliveries of exhausted messages by stream sequence; the fake of exhausted messages reads them."""
        self.became_exhausted = asyncio.Event()
        self._stream = stream
        self.name = name
        self.stream = stream.name
        self._clock = clock
        self._max_deliver = max_deliver
        self._max_ack_pending = max_ack_pending
        self._wait_seconds = wait_seconds
        self._last_seq = 0
        self._pending: dict[int, _Pending] = {}
        self._changed = asyncio.Event()
        self._waiting = 0
        self._deliveries = 0
        self._looked_at: int | None = None

    async def fetch(self, batch: int, *, bytes_max: int | None = None) -> Sequence[InboundMessage]:
        """Wait for due messages and return them; none after ``wait_seconds``."""
        deadline = self._clock() + self._wait_seconds
        self._looked_at = None
        self._waiting += 1
        try:
            while True:
                taken = self._take(batch, bytes_max)
                if taken or self._clock() >= deadline:
                    return taken
                soonest = min((pending.due_at for pending in self._pending.values()), default=deadline)
                await self._wait(min(deadline, soonest) - self._clock())
        finally:
            self._waiting -= 1

    async def is_shared(self) -> bool:
        """Look for fetches that wait, and for deliveries since the last look."""
        before, self._looked_at = self._looked_at, self._deliveries
        return self._waiting > 0 or (before is not None and self._deliveries > before)

    async def ack(self, msg: InboundMessage) -> None:
        """Settle the message."""
        if msg.reply:
            self._pending.pop(msg.seq, None)
            self._changed.set()

    async def ack_batch(self, msgs: Sequence[InboundMessage]) -> None:
        """Settle several messages."""
        for msg in msgs:
            await self.ack(msg)

    async def nak(self, msg: InboundMessage, *, delay_seconds: float = 0.0) -> None:
        """Request redelivery after a delay."""
        self._postpone(msg, delay_seconds)

    async def give_back(self, reply: str, *, delay_seconds: float) -> None:
        """Request redelivery of another worker's delivery."""
        seq = int(reply.rpartition(".")[2])
        if (message := self.message(seq, deliveries=1)) is not None:
            self._postpone(message, delay_seconds)

    async def in_progress(self, msg: InboundMessage) -> None:
        """Restart the message's ack_wait."""
        self._postpone(msg, self.ack_wait_seconds)

    async def find_undeliverable(self, seqs: Sequence[int]) -> Mapping[int, InboundMessage | None]:
        """Return messages that will not be redelivered; the fake knows all of them, the server not always."""
        found = {seq: self.message(seq, deliveries=0) for seq in seqs if seq not in self._pending}
        return {seq: message for seq, message in found.items() if message is None or seq <= self._last_seq}

    async def ahead(self, after_seq: int, limit: int) -> Sequence[InboundMessage] | None:
        """Read messages after those that fill max_ack_pending."""
        behind = range(max(after_seq, self._last_seq) + 1, self._stream.last_seq + 1)
        found = [message for seq in behind if (message := self.message(seq, deliveries=0)) is not None]
        return None if self._has_room() else found[:limit]

    def message(self, seq: int, *, deliveries: int) -> InboundMessage | None:
        """Return a message of the stream, as a delivery if it was delivered; None: it is dropped."""
        message = self._stream.message(seq)
        reply = f"{self.name}.{deliveries}.{seq}" if deliveries else ""
        return message and message._replace(consumer=self.name, deliveries=deliveries, reply=reply)

    def _postpone(self, msg: InboundMessage, seconds: float) -> None:
        if msg.reply and msg.seq in self._pending:
            due_at = self._clock() + seconds
            self._pending[msg.seq] = _Pending(self._pending[msg.seq].deliveries, due_at)
            self._changed.set()

    def _take(self, batch: int, bytes_max: int | None) -> list[InboundMessage]:
        """Deliver what is due again, then what is new; a first message may have any size."""
        taken: list[InboundMessage] = []

        def deliver(seq: int, deliveries: int) -> bool:
            """Deliver a message, or give it up; return False where the fetch has no room for it."""
            message = self.message(seq, deliveries=deliveries)
            size = sum(each.size for each in [*taken, *([message] if message else [])])
            if len(taken) == batch or (taken and bytes_max is not None and size > bytes_max):
                return False
            self._pending.pop(seq, None)
            if deliveries - 1 == self._max_deliver:
                self.exhausted_deliveries[seq] = self._max_deliver
                self.became_exhausted.set()
            elif message is not None:
                self._pending[seq] = _Pending(deliveries, self._clock() + self.ack_wait_seconds)
                self._deliveries += 1
                taken.append(message)
            return True

        now = self._clock()
        for seq, pending in sorted(self._pending.items(), key=lambda item: item[1].due_at):
            if pending.due_at > now or not deliver(seq, pending.deliveries + 1):
                break
        while self._has_room() and self._last_seq < self._stream.last_seq and deliver(self._last_seq + 1, 1):
            self._last_seq += 1
        return taken

    def _has_room(self) -> bool:
        return len(self._pending) < self._max_ack_pending

    async def _wait(self, seconds: float) -> None:
        """Wait for a message, an answer to one, or the time that makes one due."""
        self._changed.clear()
        waits: list[asyncio.Task[object]] = [asyncio.create_task(self._changed.wait())]
        if self._has_room():
            waits.append(asyncio.create_task(self._stream.wait_for_growth(after_seq=self._last_seq)))
        try:
            await asyncio.wait(waits, timeout=max(seconds, 0.0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()


# --- In-memory fake of the exhausted messages: those that in-memory consumers stopped delivering.


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
