"""Bugs to plant: mistakes that others have made in this kind of program, each a small patch of the real code.

A simulation that does not find them would not find their like in the worker either.
"""

import contextlib
import dataclasses
import json
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from sea_mq_worker.errors import InvalidEventError, UnavailableError
from sea_mq_worker.inbox import dead_letter as dead_letter_publisher
from sea_mq_worker.inbox.completion import CompletionBatcher
from sea_mq_worker.inbox.consumer import HandlerCaller
from sea_mq_worker.inbox.dead_letter import DeadLetterPublisher, dead_letter_message
from sea_mq_worker.inbox.message import (
    AlreadySettled,
    DeadLetter,
    HandlerResult,
    InboxMessage,
    Leased,
    Poison,
    Processed,
    Receipt,
)
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.message import OutboundMessage, Stored
from sea_mq_worker.outbox import publisher as batch_publisher
from sea_mq_worker.outbox.event import Claim, EventState, OutboxEvent, Published, Released, Verdict
from sea_mq_worker.outbox.message import outbound_message
from sea_mq_worker.outbox.publisher import BatchPublisher, OutboxPublisher, Settlement
from sea_mq_worker.outbox.retry import RetryPolicy
from sea_mq_worker.ports import OtherSession
from sea_mq_worker.testing import handler
from sea_mq_worker.testing.inbox import InMemoryInbox
from sea_mq_worker.testing.outbox import InMemoryOutbox, OutboxRow
from sea_mq_worker.wiring.context import WorkerContext
from tests.simulation.sessions import SessionWire

Plant = Callable[[], AbstractContextManager[Any]]

BUGS: dict[str, Plant] = {}


def _bug(owner: object, name: str, *, called: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a replacement of one function; it gets the real one as its first argument."""
    real = getattr(owner, name)

    def register(wrong: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*args: Any, **given: Any) -> Any:
            return wrong(real, *args, **given)

        BUGS[called] = lambda: mock.patch.object(owner, name, replacement)
        return wrong

    return register


# --- the outbox's statements


@_bug(InMemoryOutbox, "_settle", called="no token in the settlement")
def _(_real: Any, self: InMemoryOutbox, claim: Claim, verdicts: Sequence[Verdict]) -> frozenset[str]:
    """The update names the id alone."""
    rows = self.table.rows
    leased = [v for v in verdicts if claim.token and rows[v.event.id].state is EventState.CLAIMED]
    for verdict in leased:
        self._change(rows[verdict.event.id], verdict)
    return frozenset(verdict.event.id for verdict in leased)


@_bug(InMemoryOutbox, "_lease", called="attempts are counted after a failure alone")
def _(real: Any, self: InMemoryOutbox, *given: Any, **options: Any) -> OutboxEvent:
    event: OutboxEvent = real(self, *given, **options)
    row: OutboxRow = given[0]
    row.attempts -= 1
    return event


@_bug(InMemoryOutbox, "_due", called="polling by a cursor")
def _(real: Any, self: InMemoryOutbox) -> list[OutboxRow]:
    """What commits later with a lower place is never seen."""
    mark = getattr(self, "mark", 0)
    due: list[OutboxRow] = [row for row in real(self) if row.seq > mark or row.attempts]
    self.mark = max([mark, *(row.seq for row in due)])  # type: ignore[attr-defined]
    return due


@_bug(InMemoryOutbox, "_ready", called="the worker's clock in the statement")
def _(_real: Any, self: InMemoryOutbox, row: OutboxRow) -> bool:
    skew = self.table.skew  # type: ignore[attr-defined]
    return row.state is EventState.PENDING and row.available_at <= self.table.clock() + skew


@_bug(InMemoryOutbox, "_ready", called="a lease that ran out is stolen at once")
def _(real: Any, self: InMemoryOutbox, row: OutboxRow) -> bool:
    """CLAIMED -> CLAIMED."""
    expired = row.claimed_at is not None and row.claimed_at < self.table.clock() - self.lease_seconds
    return expired or real(self, row)


@_bug(InMemoryOutbox, "_runs", called="locked rows are skipped without regard to keys")
def _(_real: Any, self: InMemoryOutbox) -> Iterator[OutboxRow]:
    return filter(self._ready, self._lane())


@_bug(InMemoryOutbox, "find_unpublished", called="a transaction stays open while publishing")
async def _(real: Any, self: InMemoryOutbox, **limits: int) -> Claim:
    """Nothing of the claim is there until it commits; nearest to it where a statement is a transaction."""
    claim: Claim = await real(self, **limits)
    for event in claim.events:
        row = self.table.rows[event.id]
        row.attempts -= 1
        row.state, row.claimed_at, row.claimed_by = EventState.PENDING, None, None
    return claim


# --- the relay


@_bug(OutboxPublisher, "_work", called="marked before it is published")
async def _(real: Any, self: OutboxPublisher, claim: Claim, *rest: Any) -> None:
    stored = Stored("SEA_EVENTS", 1)
    with contextlib.suppress(UnavailableError):
        await self.outbox.mark_published_batch(claim, [Published(event, stored) for event in claim.events])
    await real(self, claim, *rest)


@_bug(batch_publisher, "outbound_message", called="a new message id for each try")
def _(real: Any, event: OutboxEvent, **given: Any) -> OutboundMessage:
    message: OutboundMessage = real(event, **given)
    fresh = str(uuid.UUID(int=random.getrandbits(128)))
    return message._replace(id=fresh, headers={**message.headers, MSG_ID: fresh})


@_bug(batch_publisher, "outbound_message", called="numbers of the payload become floats")
def _(real: Any, event: OutboxEvent, **given: Any) -> OutboundMessage:
    message: OutboundMessage = real(event, **given)
    return message._replace(payload=json.dumps(json.loads(message.payload)).encode())


@_bug(BatchPublisher, "publish", called="a bad event ends its batch")
async def _(real: Any, self: BatchPublisher, events: tuple[OutboxEvent, ...], **given: Any) -> list[Verdict]:
    try:
        for event in events:
            outbound_message(event, context=self.context, source=self.source)
    except InvalidEventError:
        self.broker_breaker.release()
        return [Released(event) for event in events]
    verdicts: list[Verdict] = await real(self, events, **given)
    return verdicts


@_bug(Settlement, "_persist", called="nothing is given back on a stop")
async def _(real: Any, self: Settlement, write: Any, claim: Claim, verdicts: Any, *rest: Any) -> Any:
    if verdicts and isinstance(verdicts[0], Released):
        return frozenset()
    return await real(self, write, claim, verdicts, *rest)


@_bug(RetryPolicy, "_known", called="a replay trusts the duplicate's acknowledgement")
def _(_real: Any, _self: RetryPolicy, event: OutboxEvent, stored: Stored) -> Verdict:
    return Published(event, stored)


# --- the inbox


@_bug(InMemoryInbox, "_insert_one", called="a known message is acknowledged")
def _(real: Any, self: InMemoryInbox, entry: InboxMessage, *rest: Any) -> Receipt:
    known = entry.message_id in self.table.rows
    receipt: Receipt = real(self, entry, *rest)
    return AlreadySettled() if known else receipt


@_bug(CompletionBatcher, "_record_and_settle", called="acknowledged before it is marked")
async def _(real: Any, self: CompletionBatcher, batch: Any, stop: Any) -> None:
    for item, _run, ending in batch:
        if isinstance(ending, Processed):
            await self.consumer.ack(item.message)
    await real(self, batch, stop)


@_bug(CompletionBatcher, "_return_or_report", called="given back without delay")
async def _(real: Any, self: CompletionBatcher, item: Any, run: Leased, ending: Any) -> None:
    shorter = dataclasses.replace(ending, delay_seconds=0.0) if hasattr(ending, "delay_seconds") else ending
    await real(self, item, run, shorter)


@_bug(handler, "result_for_status", called="a 404 is taken for poison")
def _(real: Any, status: int, **given: Any) -> HandlerResult:
    result: HandlerResult = real(status, **given)
    return Poison("not found") if status == 404 else result


@_bug(HandlerCaller, "handle", called="attempts are the server's deliveries")
async def _(real: Any, self: HandlerCaller, item: Any, run: Leased, *rest: Any, **given: Any) -> Any:
    deliveries = run._replace(attempts=item.message.deliveries)
    return await real(self, item, deliveries, *rest, **given)


@_bug(DeadLetterPublisher, "_publish_unless_stored", called="acknowledged although the dead letter failed")
async def _(
    _real: Any,
    self: DeadLetterPublisher,
    message: OutboundMessage,
    _begun_ago: float,
    fresh_until: float,
    _stop: Any,
) -> None:
    with contextlib.suppress(UnavailableError):
        await self._publish(message, fresh_until)


@_bug(dead_letter_publisher, "dead_letter_message", called="a new id for each dead letter")
def _(_real: Any, letter: DeadLetter, **given: Any) -> OutboundMessage:
    message = dead_letter_message(letter, **given)
    fresh = f"dlq:{random.getrandbits(64)}"
    return message._replace(id=fresh, headers={**message.headers, MSG_ID: fresh})


# --- the takeover


@_bug(WorkerContext, "session_lost_since", called="a worker sends on without its session")
def _(_real: Any, _self: WorkerContext, _moment: float) -> bool:
    return False


@contextlib.contextmanager
def _lock_ignored() -> Iterator[None]:
    """Nobody asks for the lock: neither the look nor the statement that ends the leases."""
    look, take_over = SessionWire._others, InMemoryOutbox.take_over

    def all_gone(self: SessionWire) -> list[OtherSession]:
        return [other._replace(is_gone=True) for other in look(self)]

    async def unlocked(self: InMemoryOutbox, session: str) -> int:
        with mock.patch.object(self.table, "held_sessions", frozenset()):
            return await take_over(self, session)

    with (
        mock.patch.object(SessionWire, "_others", all_gone),
        mock.patch.object(InMemoryOutbox, "take_over", unlocked),
    ):
        yield


BUGS["a worker that lives is taken for gone"] = _lock_ignored
