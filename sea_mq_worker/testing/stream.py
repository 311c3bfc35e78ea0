"""A JetStream stream in memory: sequences and duplicate window; fake publisher and consumer share it.

As on the server, the window counts from when the first copy of an id was stored, knows ids of messages
that were purged since, and is built anew from the stored messages when the server restarts.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from sea_mq_worker.domain.headers import MSG_ID
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.outcomes import Stored
from sea_mq_worker.testing import EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEntry:
    """One stored message; ``stored_at`` is in seconds of the stream's clock."""

    seq: int
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    stored_at: float


@dataclass(kw_only=True, eq=False)
class InMemoryStream:
    """Messages in order of their sequence, for as long as this object lives.

    Attributes:
        name: as acknowledgements give it.
        clock: seconds; only differences count.
        duplicate_window_seconds: how long a message id is remembered.
    """

    name: str
    clock: Callable[[], float]
    duplicate_window_seconds: float = 3600.0
    last_seq: int = 0
    _entries: dict[int, StreamEntry] = field(default_factory=dict)
    _known: dict[str, tuple[int, float]] = field(default_factory=dict)
    _grown: asyncio.Event = field(default_factory=asyncio.Event)

    def store(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> Stored:
        """Store a message, or say which sequence its id has already."""
        self._forget()
        message_id = headers.get(MSG_ID, "")
        if message_id in self._known:
            return Stored(self.name, self._known[message_id][0], duplicate=True)
        self.last_seq += 1
        now = self.clock()
        self._entries[self.last_seq] = StreamEntry(
            seq=self.last_seq, subject=subject, payload=payload, headers=dict(headers), stored_at=now
        )
        if message_id:
            self._known[message_id] = (self.last_seq, now)
        self._grown.set()
        return Stored(self.name, self.last_seq)

    def entries(self, *, after_seq: int = 0) -> Sequence[StreamEntry]:
        """Return what is stored behind ``after_seq``, in order."""
        return [entry for seq, entry in self._entries.items() if seq > after_seq]

    def get(self, seq: int) -> StreamEntry | None:
        """Return one message, or None where it was purged or never stored."""
        return self._entries.get(seq)

    def message(self, seq: int) -> InboundMessage | None:
        """Return one message as if it was read from the stream, without a delivery."""
        entry = self._entries.get(seq)
        if entry is None:
            return None
        return InboundMessage(
            stream=self.name,
            seq=seq,
            consumer="",
            subject=entry.subject,
            payload=entry.payload,
            headers=entry.headers,
            stored_at=EPOCH + timedelta(seconds=entry.stored_at),
            deliveries=0,
            reply="",
        )

    async def wait_for_growth(self, *, after_seq: int) -> None:
        """Return once something was stored behind ``after_seq``, even if it was purged since."""
        while self.last_seq <= after_seq:
            self._grown.clear()
            await self._grown.wait()

    def remove(self, seq: int) -> None:
        """Delete one message; the deduplication window still knows its ID."""
        self._entries.pop(seq, None)

    def purge(self) -> None:
        """Remove every message; sequences go on and the window still knows the ids."""
        self._entries.clear()

    def restart(self) -> None:
        """Do what a restart of the server does: the window knows only what is still stored."""
        kept = {entry.seq for entry in self._entries.values()}
        self._known = {name: known for name, known in self._known.items() if known[0] in kept}

    def _forget(self) -> None:
        """Drop ids whose window is over; insertion order is order of age."""
        horizon = self.clock() - self.duplicate_window_seconds
        for message_id, (_, stored_at) in list(self._known.items()):
            if stored_at > horizon:
                return
            del self._known[message_id]
