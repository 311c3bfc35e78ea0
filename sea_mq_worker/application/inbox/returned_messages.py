"""Messages that were given back without an attempt, and when each is due again."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sea_mq_worker.application.waiting import IMMEDIATE_REDELIVERY_SECONDS
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.outcomes import GivenBack
from sea_mq_worker.ports.jetstream import Settler

_HELD_MAX = 10_000


class _Held(NamedTuple):
    message: InboundMessage
    settler: Settler | None
    event_type: str
    due_at: float
    not_before: float


@dataclass(slots=True)
class ReturnedMessages:
    """Of one consumer, by stream sequence; memory alone, for the server remembers the messages.

    Attributes:
        clock: monotonic seconds.
    """

    clock: Callable[[], float]
    _held: dict[int, _Held] = field(default_factory=dict)
    _some: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, message: InboundMessage, ending: GivenBack, settler: Settler | None = None) -> None:
        """Remember when a message comes again; ``settler``: who settled it, if not the consumer."""
        now = self.clock()
        if len(self._held) >= _HELD_MAX:
            self._held = {seq: held for seq, held in self._held.items() if held.due_at > now}
        due_at, not_before = now + ending.delay_seconds, now + ending.least_seconds
        if len(self._held) < _HELD_MAX and due_at > now:
            named = message._replace(payload=b"", headers={})  # thousands of bodies would be too many
            self._held[message.seq] = _Held(named, settler, ending.event_type, due_at, not_before)
            self._some.set()

    def early_seconds(self, message: InboundMessage) -> float:
        """Return for how long a message that is there again must still wait.

        A delivery waits as long as the handler asked; what was only read waits its whole delay.
        """
        held = self._held.get(message.seq)
        if held is None:
            return 0.0
        early = (held.not_before if message.reply else held.due_at) - self.clock()
        if early <= 0 or message.reply:
            del self._held[message.seq]
        return max(0.0, early)

    async def some(self) -> None:
        """Wait until the consumer holds a place for a message that is not due yet."""
        now = self.clock()
        while not any(held.due_at > now and _holds_place(held) for held in self._held.values()):
            self._some.clear()
            await self._some.wait()
            now = self.clock()

    def take(self, event_type: str) -> Iterator[tuple[InboundMessage, Settler | None, float]]:
        """Forget the messages of a type; return each, who settled it, and after which delay it may come."""
        now = self.clock()
        for seq, held in list(self._held.items()):
            if held.event_type != event_type or (not held.message.reply and held.not_before > now):
                continue
            del self._held[seq]
            if held.message.reply and held.due_at > now:
                yield held.message, held.settler, max(IMMEDIATE_REDELIVERY_SECONDS, held.not_before - now)


def _holds_place(held: _Held) -> bool:
    return held.settler is None and bool(held.message.reply)
