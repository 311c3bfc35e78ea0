"""Port PORT-047-003 in memory: publishes into an InMemoryStream, with faults on request."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from sea_mq_worker.domain.encoding import validation_error
from sea_mq_worker.domain.errors import BrokerUnavailableError
from sea_mq_worker.domain.headers import MSG_ID, is_same_message
from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.domain.outcomes import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown, Unsent
from sea_mq_worker.domain.stream_search import SearchedId, SearchProgress, SearchResult
from sea_mq_worker.testing.stream import InMemoryStream

_BEHIND = Unsent("held back behind a message that was not stored")


class Fault(Enum):
    """Failure of one message."""

    NONE = auto()
    REFUSED = auto()
    """The stream can never store the message."""
    FAILED = auto()
    """The stream cannot store the message now."""
    BARRED = auto()
    """The server reports that it accepts no such messages now."""
    LOST = auto()
    """The message never reaches the stream; there is no answer."""
    ACK_LOST = auto()
    """The message is stored; there is no answer."""


def no_fault(_message: OutboundMessage) -> Fault:
    """Let every message through."""
    return Fault.NONE


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
    faults: Callable[[OutboundMessage], Fault] = no_fault
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
        message = OutboundMessage(
            id=headers.get(MSG_ID, ""), subject=subject, payload=payload, headers=headers
        )
        await asyncio.sleep(0)
        return self._send(message, judged=False)

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
            outcomes.append(self._send(message))
            if self.keeps_order and not isinstance(outcomes[-1], Stored):
                break
        return outcomes + [_BEHIND] * (len(messages) - len(outcomes))

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

    def _send(self, message: OutboundMessage, *, judged: bool = True) -> PublishOutcome:
        bad = validation_error(message, self.max_payload)
        if bad:
            return Rejected(bad)
        if not self.connected:
            return Unsent("not connected")
        outcome = self._meet(self.faults(message) if self.hears else Fault.ACK_LOST, message)
        if judged and isinstance(outcome, Stored) and outcome.duplicate:
            return self._judge(message, outcome)
        return outcome

    def _meet(self, fault: Fault, message: OutboundMessage) -> PublishOutcome:
        match fault:
            case Fault.NONE:
                return self.stream.store(message.subject, message.payload, message.headers)
            case Fault.REFUSED:
                return Rejected("the stream never takes it")
            case Fault.FAILED:
                return FailedTransiently("the stream does not take it now")
            case Fault.BARRED:
                return Unknown("the server takes nothing like it", answered=True, refused=True)
            case Fault.LOST:
                return Unknown("no acknowledgement")
            case Fault.ACK_LOST:
                self.stream.store(message.subject, message.payload, message.headers)
                return Unknown("no acknowledgement")
            case _:
                assert_never(fault)

    def _judge(self, message: OutboundMessage, stored: Stored) -> PublishOutcome:
        copy = self.stream.get(stored.seq)
        if copy is None and not message.repeated:
            return Rejected(f"ID_TAKEN: the stream knows this id from a message at {stored.seq} that is gone")
        if copy and not is_same_message(message, copy.subject, copy.payload, copy.headers):
            return Rejected(f"ID_TAKEN: the stream has another message under this id, at {stored.seq}")
        if copy and stored.seq == message.earlier_seq:
            return stored._replace(seconds_ago=self.clock() - copy.stored_at)
        return stored
