"""Redrive: pass a dead letter through inbox and handler again, in this process."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from uuid import UUID

from sea_mq_worker.application.inbox.leases import renewing_lease
from sea_mq_worker.connections.handler import open_handler
from sea_mq_worker.domain.dead_letter_records import DeadLetterEntry
from sea_mq_worker.domain.errors import ContractError, WorkerError
from sea_mq_worker.domain.inbound import content_hash, parse_message
from sea_mq_worker.domain.inbox_results import (
    AlreadySettled,
    ContentConflict,
    InboxMessage,
    Leased,
    LeasedElsewhere,
    Unwritable,
)
from sea_mq_worker.domain.messages import HandlerRequest, InboundMessage
from sea_mq_worker.domain.outcomes import Accepted
from sea_mq_worker.operations.broker import dead_letters
from sea_mq_worker.operations.database import inbox, operations
from sea_mq_worker.operations.dead_letters import DeadLetterOutcome, original_message
from sea_mq_worker.ports.handler import EventHandler
from sea_mq_worker.ports.inbox import InboxRepository
from sea_mq_worker.ports.operations import DeadLetterRecords, DeadLetterStore
from sea_mq_worker.settings import Settings

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
