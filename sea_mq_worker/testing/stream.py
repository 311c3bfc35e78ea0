"""A JetStream stream in memory: sequences and duplicate window; fake publisher and consumer share it.

As on the server, the window counts from when the first copy of an id was stored, knows ids of messages
that were purged since, and is built anew from the stored messages when the server restarts.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from sea_mq_worker.errors import BrokerUnavailableError
from sea_mq_worker.nats.headers import MSG_ID, is_same_message, validation_error
from sea_mq_worker.nats.message import (
    FailedTransiently,
    InboundMessage,
    OutboundMessage,
    PublishOutcome,
    Rejected,
    SearchedId,
    SearchProgress,
    SearchResult,
    Stored,
    Unknown,
    Unsent,
)
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


# --- Port PORT-047-003 in memory: publishes into an InMemoryStream, with faults on request.


class Fault(Enum):
    """Failure of one message; the value is its outcome, where the stream does not give one."""

    NONE = None
    REFUSED = Rejected("the stream never takes it")
    FAILED = FailedTransiently("the stream does not take it now")
    BARRED = Unknown("the server takes nothing like it", answered=True, refused=True)
    LOST = Unknown("no acknowledgement")
    """The message never reaches the stream; there is no answer."""
    ACK_LOST = Unknown("no acknowledgement of a stored message")
    """The message is stored; there is no answer."""


@dataclass(kw_only=True, eq=False)
class InMemoryPublisher:
    """Publishes to one stream; JetStreamPublisher's rules hold.

    Attributes:
        faults: asked for each message as it is sent.
        keeps_order: behave as the batched modes do, which store nothing behind what was not stored.
        connected: set to False for an outage.
        hears: set to False for a link on which no answer comes back.
        find_max: messages that a search reads before its time is over; None: all.
        max_payload: bytes of headers and body that the server takes.
    """

    stream: InMemoryStream
    clock: Callable[[], float]
    faults: Callable[[OutboundMessage], Fault] = lambda _message: Fault.NONE
    keeps_order: bool = False
    max_payload: int = 1024 * 1024
    connected: bool = True
    hears: bool = True
    find_max: int | None = None

    def __post_init__(self) -> None:
        self.duplicate_window_seconds = self.stream.duplicate_window_seconds

    async def read_duplicate_window(self) -> float:
        """Return how long the stream remembers a message id now; 0 if it does not answer."""
        await asyncio.sleep(0)
        if not (self.connected and self.hears):
            return 0.0
        self.duplicate_window_seconds = self.stream.duplicate_window_seconds
        return self.duplicate_window_seconds

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        """Make one attempt for one message."""
        await asyncio.sleep(0)
        return self.send(OutboundMessage(headers.get(MSG_ID, ""), subject, payload, headers))

    async def publish_batch(
        self,
        messages: Sequence[OutboundMessage],
        *,
        timeout_seconds: float,
        in_order: bool = False,  # noqa: ARG002 - ``keeps_order`` decides for every batch
    ) -> Sequence[PublishOutcome]:
        """Make one attempt for each message; see JetStreamPublisher."""
        await asyncio.sleep(0)
        if timeout_seconds <= 0:
            return [Unsent("the deadline passed before its turn")] * len(messages)
        outcomes: list[PublishOutcome] = []
        for message in messages:
            outcomes.append(self.judge(message, self.send(message)))
            if self.keeps_order and not isinstance(outcomes[-1], Stored):
                break
        behind = Unsent("held back behind a message that was not stored")
        return outcomes + [behind] * (len(messages) - len(outcomes))

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        """Scan what the stream stored lately; see JetStreamPublisher."""
        await asyncio.sleep(0)
        if not (self.connected and self.hears):
            raise BrokerUnavailableError("not connected")
        return self.look_for(wanted)

    def look_for(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        """Do what a search does that the server answers."""
        return {each.id: self._look(each) for each in wanted}

    def _look(self, wanted: SearchedId) -> SearchResult:
        looked = wanted.looked or SearchProgress(self.stream.name, 0, 0)
        until = looked.until or self.stream.last_seq
        start = self.clock() - wanted.since_seconds
        behind = [
            entry
            for entry in self.stream.entries(after_seq=looked.through)
            if entry.stored_at >= start and entry.seq <= until
        ]
        read = behind[: self.find_max]
        copies = [
            entry.seq
            for entry in read
            if entry.headers.get(MSG_ID) == wanted.id and entry.seq != wanted.other_than
            if wanted.message is None
            or is_same_message(wanted.message, entry.subject, entry.payload, entry.headers)
        ]
        if copies:
            return Stored(self.stream.name, copies[-1], duplicate=True)
        return looked._replace(through=read[-1].seq if len(read) < len(behind) else until, until=until)

    def send(self, message: OutboundMessage) -> PublishOutcome:
        """Do what the server does with a message, or does not; a duplicate is not judged."""
        if bad := validation_error(message, self.max_payload):
            return Rejected(bad)
        if not self.connected:
            return Unsent("not connected")
        fault = self.faults(message) if self.hears else Fault.ACK_LOST
        if fault in {Fault.NONE, Fault.ACK_LOST}:
            stored = self.stream.store(message.subject, message.payload, message.headers)
            return fault.value or stored
        outcome: PublishOutcome = fault.value
        return outcome

    def judge(self, message: OutboundMessage, outcome: PublishOutcome) -> PublishOutcome:
        """Judge a duplicate by the message that the stream has under the id."""
        if not (isinstance(outcome, Stored) and outcome.duplicate):
            return outcome
        copy = self.stream.get(outcome.seq)
        if copy is None:
            gone = f"ID_TAKEN: the stream knows this id from a message at {outcome.seq} that is gone"
            return outcome if message.repeated else Rejected(gone)
        if not is_same_message(message, copy.subject, copy.payload, copy.headers):
            return Rejected(f"ID_TAKEN: the stream has another message under this id, at {outcome.seq}")
        if outcome.seq == message.earlier_seq:
            return outcome._replace(seconds_ago=self.clock() - copy.stored_at)
        return outcome
