"""Groups of dead letters, and the outcome of a change of one."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sea_mq_worker.connections import open_handler
from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.inbox.leases import renewing_lease
from sea_mq_worker.inbox.message import (
    Accepted,
    AlreadySettled,
    ContentConflict,
    HandlerRequest,
    InboxMessage,
    Leased,
    LeasedElsewhere,
    Unwritable,
    content_hash,
    parse_message,
)
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.operators.database import inbox, operations
from sea_mq_worker.operators.ports import DeadLetterRecords, DeadLetterStore
from sea_mq_worker.operators.records import DeadLetterEntry, DeadLetterFilter, Group, mask_ids
from sea_mq_worker.operators.streams import dead_letters
from sea_mq_worker.ports import EventHandler, InboxRepository
from sea_mq_worker.settings import Settings

if TYPE_CHECKING:
    from sea_mq_worker.operators.records import ActionOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterOutcome:
    """Outcome for one dead letter.

    ``done``: the change succeeded and the dead letter is removed. ``skipped``: no redrive can handle it.
    """

    seq: int
    message_id: str
    done: bool
    text: str
    skipped: bool = False


def can_be_handled(entry: DeadLetterEntry) -> bool:
    """Return whether a redrive would call the handler, as far as the dead letter shows.

    Its content decides and not its reason: a newer worker understands more messages.
    """
    if entry.body_omitted:
        return entry.reason in {Reason.REJECTED, Reason.EXHAUSTED}
    request = parse_message(entry.restored())
    return isinstance(request, HandlerRequest) and request.message_id == entry.message_id


async def dead_letter_groups(
    stream: DeadLetterStore, which: DeadLetterFilter, *, read_max: int, groups_max: int
) -> tuple[int, Sequence[Group]]:
    """Count dead letters by reason, subject, consumer and detail, most frequent first.

    Returns the number of dead letters read, and the groups. Numbers in details do not matter.
    """
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], DeadLetterEntry] = {}
    read = 0
    async for entry in stream.walk(which, limit=read_max):
        read += 1
        for name in _names(entry):
            counts[name] += 1
            first.setdefault(name, entry)
    groups = [
        Group(kind=kind, name=name, count=count, oldest_at=first[kind, name].stored_at)
        for (kind, name), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    ]
    by_kind = groupby(groups, key=lambda group: group.kind)
    return read, [group for _, same in by_kind for group in islice(same, groups_max)]


async def original_message(store: DeadLetterStore, entry: DeadLetterEntry) -> InboundMessage:
    """Restore the message that was dead-lettered; read it from its stream if a part was omitted.

    Raises:
        ContractError: its body was omitted, and its stream does not have it.
    """
    if entry.body_omitted:
        return await store.source(entry)
    if entry.headers_omitted:
        with suppress(ContractError):
            source = await store.source(entry)
            if source.payload == entry.payload:  # a stream made anew has another message there
                return source
    return entry.restored()


def _names(entry: DeadLetterEntry) -> Sequence[tuple[str, str]]:
    return [
        ("reason", entry.reason),
        ("subject", entry.original_subject),
        ("consumer", entry.consumer),
        ("detail", mask_ids(entry.detail)),
    ]


# --- Purge: delete dead letters for good, and give up their messages.


@dataclass(frozen=True, slots=True, kw_only=True)
class Purger:
    """Deletes each dead letter after recording it in the inbox: an interrupted purge can be repeated."""

    records: DeadLetterRecords
    dead_letters: DeadLetterStore
    actor: str
    reason: str

    @asynccontextmanager
    async def recorded(
        self, selection: Mapping[str, Any]
    ) -> AsyncIterator[Callable[[int], Awaitable[DeadLetterOutcome]]]:
        """Keep one audit record for the block; yield a function that deletes one dead letter."""
        action = await self.records.begin_purge(selection, actor=self.actor, reason=self.reason)
        outcome: ActionOutcome = "refused"

        async def purge(seq: int) -> DeadLetterOutcome:
            nonlocal outcome
            before, outcome = outcome, "failed"
            result = await self._purge(seq, action=action)
            outcome = "done" if result.done else before
            return result

        try:
            yield purge
        finally:
            with suppress(WorkerError):
                await self.records.finish(action, outcome)

    async def _purge(self, seq: int, *, action: int) -> DeadLetterOutcome:
        """Delete one dead letter; keep it if its message is being handled again."""
        try:
            entry = await self.dead_letters.show(seq)
            is_recorded = await self.records.record_purge(
                _uuid(entry.message_id), action=action, actor=self.actor, reason=self.reason
            )
            if not is_recorded:
                text = (
                    "its message is open again, as during a redrive; "
                    f"see `python -m sea_mq_worker inbox show {entry.message_id}`"
                )
                return DeadLetterOutcome(seq=seq, message_id=entry.message_id, done=False, text=text)
            await self.dead_letters.remove(seq)
        except ContractError as error:
            return DeadLetterOutcome(seq=seq, message_id="", done=False, text=str(error))
        return DeadLetterOutcome(seq=seq, message_id=entry.message_id, done=True, text="deleted")


@asynccontextmanager
async def purger(settings: Settings, *, actor: str, reason: str) -> AsyncIterator[Purger]:
    async with AsyncExitStack() as stack:
        yield Purger(
            records=await stack.enter_async_context(operations(settings)),
            dead_letters=await stack.enter_async_context(dead_letters(settings)),
            actor=actor,
            reason=reason,
        )


def _uuid(text: str) -> UUID | None:
    """Parse a message ID; None: another program stored a message that is no dead letter."""
    try:
        return UUID(text)
    except ValueError:
        return None


# --- Redrive: pass a dead letter through inbox and handler again, in this process.

_NOT_LEASED = {
    LeasedElsewhere: "a worker has a lease of it, or an interrupted redrive: retry when the lease has ended",
    AlreadySettled: "it was settled meanwhile; see `python -m sea_mq_worker inbox show {}`",
    ContentConflict: "the inbox has another content under its ID: publish it again, under a new ID",
    Unwritable: "PostgreSQL refuses a change of its inbox row: fix the trigger or constraint, then retry",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriver:
    """Calls the handler with dead letters like the worker; renews the lease during the call."""

    records: DeadLetterRecords
    inbox: InboxRepository
    dead_letters: DeadLetterStore
    handler: EventHandler
    lease_seconds: float

    async def redrive(self, seq: int, *, actor: str, reason: str) -> DeadLetterOutcome:
        """Handle one dead letter; without an effect it stays in the stream and in the inbox.

        Raises:
            UnavailableError: a server cannot be reached; repeating the redrive is safe.
        """
        try:
            entry = await self.dead_letters.show(seq)
            message = await original_message(self.dead_letters, entry)
        except ContractError as error:
            return DeadLetterOutcome(seq=seq, message_id="", done=False, text=str(error))
        request = parse_message(message)
        if not isinstance(request, HandlerRequest) or request.message_id != entry.message_id:
            text = f"{entry.reason}: it can never be handled as it is; publish it corrected, under a new ID"
            return replace(_failed(entry, text), skipped=True)
        opened = await self.records.redriven(UUID(request.message_id), actor=actor, reason=reason)
        try:
            if opened.open:
                outcome = await self._handle(entry, message, request)
            else:
                await self.dead_letters.remove(seq)
                outcome = _done(entry, "processed before; the dead letter is removed")
        except WorkerError:
            with suppress(WorkerError):
                await self.records.finish(opened.action, "failed")
            raise
        await self.records.finish(opened.action, "done" if outcome.done else "refused")
        return outcome

    async def _handle(
        self, entry: DeadLetterEntry, message: InboundMessage, request: HandlerRequest
    ) -> DeadLetterOutcome:
        receipts = await self.inbox.insert_batch(
            [_recorded(message, request)], lease_seconds=self.lease_seconds
        )
        run = receipts[0]
        if not isinstance(run, Leased):
            return _failed(entry, _NOT_LEASED[type(run)].format(entry.message_id))
        async with renewing_lease(self.inbox, run.lease, lease_seconds=self.lease_seconds):
            result = await self.handler.handle_request(request)
        if isinstance(result, Accepted):
            if not await self.inbox.mark_processed_batch([run.lease]):
                return _failed(
                    entry,
                    "handled, but another worker has taken it over; see "
                    f"`python -m sea_mq_worker inbox show {entry.message_id}`",
                )
            await self.dead_letters.remove(entry.seq)
            return _done(entry, f"processed, the handler answered {result.status}")
        await self._dead_letter_again(run, entry, result.error)
        return _failed(entry, f"{result.error}; the dead letter stays")

    async def _dead_letter_again(self, run: Leased, entry: DeadLetterEntry, error: str) -> None:
        """Record the message as dead-lettered: a WAITING one would never be delivered again."""
        await self.inbox.begin_dead_letter(run.lease, reason=entry.reason, detail=f"redrive: {error}")
        await self.inbox.mark_dead_lettered([run.lease])


@asynccontextmanager
async def redriver(settings: Settings) -> AsyncIterator[Redriver]:
    async with AsyncExitStack() as stack:
        handler = open_handler(settings, concurrency=1)
        stack.push_async_callback(handler.close)
        yield Redriver(
            records=await stack.enter_async_context(operations(settings)),
            inbox=await stack.enter_async_context(inbox(settings, worker=f"redrive-{os.getpid()}")),
            dead_letters=await stack.enter_async_context(dead_letters(settings)),
            handler=handler,
            lease_seconds=settings.inbox_lease_seconds,
        )


def _recorded(message: InboundMessage, request: HandlerRequest) -> InboxMessage:
    return InboxMessage(
        message_id=request.message_id,
        subject=message.subject,
        consumer=message.consumer,
        stream=message.stream,
        stream_seq=message.seq,
        content_hash=content_hash(message),
    )


def _done(entry: DeadLetterEntry, text: str) -> DeadLetterOutcome:
    return DeadLetterOutcome(seq=entry.seq, message_id=entry.message_id, done=True, text=text)


def _failed(entry: DeadLetterEntry, text: str) -> DeadLetterOutcome:
    return DeadLetterOutcome(seq=entry.seq, message_id=entry.message_id, done=False, text=text)
