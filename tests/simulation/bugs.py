"""Bugs to plant: mistakes that others have made in this kind of program.

Each is a wrong answer or a call too many at a port, between the worker's loops and a simulated server; the
loops stay as they are. A simulation that does not find them would not find their like in the worker either.
"""

import contextlib
import dataclasses
import json
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from sea_mq_worker.errors import InvalidEventError, UnavailableError
from sea_mq_worker.inbox.message import (
    Accepted,
    AlreadySettled,
    HandlerRequest,
    HandlerResult,
    InboxMessage,
    Lease,
    Poison,
    Receipt,
    Retry,
)
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.message import InboundMessage, OutboundMessage, PublishOutcome, Stored
from sea_mq_worker.outbox.event import Claim, EventState, Published, Released, Verdict
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.ports import OtherSession
from sea_mq_worker.testing.handler import InMemoryHandler
from sea_mq_worker.testing.inbox import InMemoryInbox
from sea_mq_worker.testing.outbox import InMemoryOutbox, OutboxRow
from tests.simulation.broker_wires import ConsumerWire, PublisherWire
from tests.simulation.wires import HandlerWire, OutboxWire, SessionWire

Plant = Callable[[], AbstractContextManager[Any]]

BUGS: dict[str, Plant] = {}

_STORED = Stored("SEA_EVENTS", 1)


def _bug(owner: object, *names: str, called: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a replacement of methods of one class; it gets the real one as its first argument."""

    def register(wrong: Callable[..., Any]) -> Callable[..., Any]:
        @contextlib.contextmanager
        def plant() -> Iterator[None]:
            with contextlib.ExitStack() as stack:
                for name in names:
                    stack.enter_context(_replaced(owner, name, wrong))
                yield

        BUGS[called] = plant
        return wrong

    return register


def _replaced(owner: object, name: str, wrong: Callable[..., Any]) -> AbstractContextManager[Any]:
    real = getattr(owner, name)

    def replacement(*args: Any, **given: Any) -> Any:
        return wrong(real, *args, **given)

    return mock.patch.object(owner, name, replacement)


# --- the outbox's statements


@_bug(
    InMemoryOutbox,
    "mark_published_batch",
    "increment_attempts_batch",
    "release",
    called="no token in the settlement",
)
async def _(real: Any, self: InMemoryOutbox, claim: Claim, verdicts: Sequence[Verdict]) -> Any:
    """The update names the id alone."""
    rows = [self.table.rows[verdict.event.id] for verdict in verdicts]
    for row in rows:
        if row.state is EventState.CLAIMED:
            row.claimed_by = claim.token
    return await real(self, claim, verdicts)


@_bug(InMemoryOutbox, "find_unpublished", called="attempts are counted after a failure alone")
async def _(real: Any, self: InMemoryOutbox, **limits: int) -> Claim:
    claim: Claim = await real(self, **limits)
    for event in claim.events:
        self.table.rows[event.id].attempts -= 1
    return claim


@_bug(InMemoryOutbox, "find_unpublished", called="polling by a cursor")
async def _(real: Any, self: InMemoryOutbox, **limits: int) -> Claim:
    """What commits later with a lower place is never seen."""
    mark = getattr(self, "mark", 0)
    with _hidden(self, lambda row: row.seq <= mark and not row.attempts):
        claim: Claim = await real(self, **limits)
    self.mark = max([mark, *(event.seq for event in claim.events)])  # type: ignore[attr-defined]
    return claim


@_bug(InMemoryOutbox, "find_unpublished", called="the worker's clock in the statement")
async def _(real: Any, self: InMemoryOutbox, **limits: int) -> Claim:
    clock, skew = self.table.clock, self.table.skew  # type: ignore[attr-defined]

    def ahead() -> float:
        moment: float = clock() + skew
        return moment

    with mock.patch.object(self.table, "clock", ahead):
        claim: Claim = await real(self, **limits)
    return claim


@_bug(InMemoryOutbox, "find_unpublished", called="a lease that ran out is stolen at once")
async def _(real: Any, self: InMemoryOutbox, **limits: int) -> Claim:
    """CLAIMED -> CLAIMED."""
    for row in self.table.rows.values():
        if row.claimed_at is not None and row.claimed_at < self.table.clock() - self.lease_seconds:
            row.state, row.claimed_at, row.claimed_by = EventState.PENDING, None, None
    claim: Claim = await real(self, **limits)
    return claim


@_bug(InMemoryOutbox, "find_unpublished", called="locked rows are skipped without regard to keys")
async def _(real: Any, self: InMemoryOutbox, **limits: int) -> Claim:
    now = self.table.clock()
    with _hidden(self, lambda row: row.state is not EventState.PENDING or row.available_at > now):
        claim: Claim = await real(self, **limits)
    return claim


@_bug(InMemoryOutbox, "find_unpublished", called="a transaction stays open while publishing")
async def _(real: Any, self: InMemoryOutbox, **limits: int) -> Claim:
    """Nothing of the claim is there until it commits; nearest to it where a statement is a transaction."""
    claim: Claim = await real(self, **limits)
    for event in claim.events:
        row = self.table.rows[event.id]
        row.attempts -= 1
        row.state, row.claimed_at, row.claimed_by = EventState.PENDING, None, None
    return claim


@contextlib.contextmanager
def _hidden(outbox: InMemoryOutbox, is_hidden: Callable[[OutboxRow], bool]) -> Iterator[None]:
    """Let a statement see the other rows alone."""
    seen = {row.id: row for row in outbox.table.rows.values() if not is_hidden(row)}
    with mock.patch.object(outbox.table, "rows", seen):
        yield


# --- the relay


@_bug(OutboxWire, "find_unpublished", called="marked before it is published")
async def _(real: Any, self: OutboxWire, **limits: int) -> Claim:
    claim: Claim = await real(self, **limits)
    if claim.events:
        with contextlib.suppress(UnavailableError):
            await self.mark_published_batch(claim, [Published(event, _STORED) for event in claim.events])
    return claim


@_bug(PublisherWire, "publish_batch", called="a new message id for each try")
async def _(real: Any, self: PublisherWire, messages: Iterable[OutboundMessage], **given: Any) -> Any:
    return await real(
        self, [_with_id(m, str(uuid.UUID(int=random.getrandbits(128)))) for m in messages], **given
    )


@_bug(PublisherWire, "publish_batch", called="numbers of the payload become floats")
async def _(real: Any, self: PublisherWire, messages: Iterable[OutboundMessage], **given: Any) -> Any:
    parsed = [m._replace(payload=json.dumps(json.loads(m.payload)).encode()) for m in messages]
    return await real(self, parsed, **given)


@_bug(OutboxWire, "find_unpublished", called="a bad event ends its batch")
async def _(real: Any, self: OutboxWire, **limits: int) -> Claim:
    claim: Claim = await real(self, **limits)
    try:
        for event in claim.events:
            outbound_message(event, context="sea", source="/sea")
    except InvalidEventError:
        await self.release(claim, [Released(event) for event in claim.events])
        return dataclasses.replace(claim, events=())
    return claim


@_bug(OutboxWire, "release", called="nothing is given back on a stop")
async def _(_real: Any, _self: OutboxWire, _claim: Claim, _verdicts: Sequence[Released]) -> frozenset[str]:
    return frozenset()


@_bug(OutboxWire, "find_unpublished", called="a replay trusts the duplicate's acknowledgement")
async def _(real: Any, self: OutboxWire, **limits: int) -> Claim:
    """The claim does not tell where the stream has the event from before."""
    claim: Claim = await real(self, **limits)
    events = tuple(event._replace(earlier_stream_seq=0) for event in claim.events)
    return dataclasses.replace(claim, events=events)


# --- the inbox


@_bug(InMemoryInbox, "insert_batch", called="a known message is acknowledged")
async def _(
    real: Any, self: InMemoryInbox, entries: Sequence[InboxMessage], **given: Any
) -> Sequence[Receipt]:
    known = set(self.table.rows)
    receipts = await real(self, entries, **given)
    return [
        AlreadySettled() if entry.message_id in known else receipt
        for entry, receipt in zip(entries, receipts, strict=True)
    ]


@contextlib.contextmanager
def _acknowledged_early() -> Iterator[None]:
    delivered: dict[str, tuple[ConsumerWire, InboundMessage]] = {}

    async def fetch(real: Any, self: ConsumerWire, *args: Any, **given: Any) -> Sequence[InboundMessage]:
        messages: Sequence[InboundMessage] = await real(self, *args, **given)
        delivered.update((_id(message), (self, message)) for message in messages)
        return messages

    async def handle(real: Any, self: HandlerWire, request: HandlerRequest) -> HandlerResult:
        result: HandlerResult = await real(self, request)
        if isinstance(result, Accepted):
            consumer, message = delivered[request.message_id]
            await consumer.ack(message)
        return result

    with _replaced(ConsumerWire, "fetch", fetch), _replaced(HandlerWire, "handle_request", handle):
        yield


BUGS["acknowledged before it is marked"] = _acknowledged_early


@_bug(ConsumerWire, "nak", called="given back without delay")
async def _(real: Any, self: ConsumerWire, message: InboundMessage, **_delay: float) -> None:
    await real(self, message, delay_seconds=0.0)


@_bug(InMemoryHandler, "handle_request", called="a 404 is taken for poison")
async def _(real: Any, self: InMemoryHandler, request: HandlerRequest) -> HandlerResult:
    result: HandlerResult = await real(self, request)
    return Poison("not found") if isinstance(result, Retry) and result.about == "deployment" else result


@contextlib.contextmanager
def _deliveries_counted() -> Iterator[None]:
    deliveries: dict[str, int] = {}

    async def fetch(real: Any, self: ConsumerWire, *args: Any, **given: Any) -> Sequence[InboundMessage]:
        messages: Sequence[InboundMessage] = await real(self, *args, **given)
        deliveries.update((_id(message), message.deliveries) for message in messages)
        return messages

    async def insert(
        real: Any, self: InMemoryInbox, entries: Sequence[InboxMessage], **given: Any
    ) -> Sequence[Receipt]:
        receipts = await real(self, entries, **given)
        return [
            receipt._replace(attempts=deliveries.get(entry.message_id, receipt.attempts))
            if isinstance(receipt, Lease)
            else receipt
            for entry, receipt in zip(entries, receipts, strict=True)
        ]

    with _replaced(ConsumerWire, "fetch", fetch), _replaced(InMemoryInbox, "insert_batch", insert):
        yield


BUGS["attempts are the server's deliveries"] = _deliveries_counted


@_bug(PublisherWire, "publish", called="acknowledged although the dead letter failed")
async def _(
    real: Any, self: PublisherWire, subject: str, payload: bytes, headers: Mapping[str, str]
) -> PublishOutcome:
    outcome: PublishOutcome = await real(self, subject, payload, headers)
    return outcome if isinstance(outcome, Stored) else Stored("SEA_DLQ", 1)


@_bug(PublisherWire, "publish", called="a new id for each dead letter")
async def _(
    real: Any, self: PublisherWire, subject: str, payload: bytes, headers: Mapping[str, str]
) -> PublishOutcome:
    outcome: PublishOutcome = await real(
        self, subject, payload, {**headers, MSG_ID: f"dlq:{random.getrandbits(64)}"}
    )
    return outcome


def _with_id(message: OutboundMessage, fresh: str) -> OutboundMessage:
    return message._replace(id=fresh, headers={**message.headers, MSG_ID: fresh})


def _id(message: InboundMessage) -> str:
    return message.headers.get("ce-id", "")


# --- the takeover


@_bug(SessionWire, "lost_since", called="a worker sends on without its session")
def _(_real: Any, _self: SessionWire, _moment: float) -> bool:
    return False


@contextlib.contextmanager
def _lock_ignored() -> Iterator[None]:
    """Nobody asks for the lock: neither the look nor the statement that ends the leases."""

    async def all_gone(real: Any, self: SessionWire) -> list[OtherSession]:
        return [other._replace(is_gone=True) for other in await real(self)]

    async def unlocked(real: Any, self: InMemoryOutbox, session: str) -> int:
        with mock.patch.object(self.table, "held_sessions", frozenset()):
            count: int = await real(self, session)
        return count

    with _replaced(SessionWire, "others", all_gone), _replaced(InMemoryOutbox, "take_over", unlocked):
        yield


BUGS["a worker that lives is taken for gone"] = _lock_ignored
