"""Messages that wait for their next delivery, and the time when each is due again."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sea_mq_worker.application.waiting import IMMEDIATE_REDELIVERY_SECONDS
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.outcomes import GivenBack
from sea_mq_worker.ports.jetstream import Settler

_HELD_MAX = 10_000
"""Cap on remembered messages, which bounds their memory."""


class _Held(NamedTuple):
    message: InboundMessage
    settler: Settler | None
    event_type: str
    due_at: float
    not_before: float


@dataclass(slots=True)
class ReturnedMessages:
    """Messages of one consumer by stream sequence; in memory only, because the server keeps the messages.

    Attributes:
        clock: monotonic seconds.
    """

    clock: Callable[[], float]
    _held: dict[int, _Held] = field(default_factory=dict)
    _added: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, message: InboundMessage, outcome: GivenBack, settler: Settler | None = None) -> None:
        """Remember when a message is due again; ``settler`` acknowledged it, where the consumer did not."""
        now = self.clock()
        if len(self._held) >= _HELD_MAX:
            self._held = {seq: held for seq, held in self._held.items() if held.due_at > now}
        due_at, not_before = now + outcome.delay_seconds, now + outcome.least_seconds
        if len(self._held) < _HELD_MAX and due_at > now:
            self._held[message.seq] = _Held(
                _position(message), settler, outcome.event_type, due_at, not_before
            )
            self._added.set()

    def early_seconds(self, message: InboundMessage) -> float:
        """Return the seconds that a message received again must still wait.

        A delivered message waits as long as the handler requested; one read ahead waits its whole delay.
        """
        held = self._held.get(message.seq)
        if held is None:
            return 0.0
        early = (held.not_before if message.reply else held.due_at) - self.clock()
        if early <= 0:
            del self._held[message.seq]
        elif message.reply:  # from now on it fills a slot under this reply subject
            self._held[message.seq] = held._replace(message=_position(message), due_at=held.not_before)
            self._added.set()
        return max(0.0, early)

    async def wait_for_held(self) -> int:
        """Wait until messages that are not due yet fill slots of max_ack_pending; return their number."""
        while not (count := self._count_held()):
            self._added.clear()
            await self._added.wait()
        return count

    def _count_held(self) -> int:
        now = self.clock()
        return sum(held.due_at > now and _fills_slot(held) for held in self._held.values())

    def take(self, event_type: str) -> Iterator[tuple[InboundMessage, Settler | None, float]]:
        """Forget the messages of a type; yield each with its settler and the delay of its redelivery."""
        now = self.clock()
        for seq, held in list(self._held.items()):
            if held.event_type != event_type or (not held.message.reply and held.not_before > now):
                continue
            del self._held[seq]
            if held.message.reply and held.due_at > now:
                yield held.message, held.settler, max(IMMEDIATE_REDELIVERY_SECONDS, held.not_before - now)


def _position(message: InboundMessage) -> InboundMessage:
    """Return the message without its body and headers: thousands of bodies would fill memory."""
    return message._replace(payload=b"", headers={})


def _fills_slot(held: _Held) -> bool:
    return held.settler is None and bool(held.message.reply)
