"""Redrive a dead letter through inbox and handler, or give it up for good."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from sea_mq_worker.connections import open_handler, open_pool
from sea_mq_worker.errors import ContractError, WorkerError
from sea_mq_worker.inbox.leases import renewing_lease
from sea_mq_worker.inbox.message import (
    Accepted,
    AlreadySettled,
    ContentConflict,
    HandlerRequest,
    InboxMessage,
    Lease,
    LeasedElsewhere,
    Unwritable,
    content_hash,
    parse_message,
)
from sea_mq_worker.inbox.postgres import PostgresInboxAdapter
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.operators.changes import ActionOutcome, begin_action, check_accountable, finish_action
from sea_mq_worker.operators.dead_letters import DeadLetterEntry, DeadLetters, open_dead_letters
from sea_mq_worker.operators.tables import SQL, open_tables
from sea_mq_worker.ports import EventHandler, InboxRepository
from sea_mq_worker.postgres.pool import fetch
from sea_mq_worker.settings import Settings

_SHOW = "see `python -m sea_mq_worker inbox show {}`"


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


# --- Redrive: pass a dead letter through inbox and handler again, in this process.

_NOT_LEASED = {
    LeasedElsewhere: "a worker has a lease of it, or an interrupted redrive: retry when the lease has ended",
    AlreadySettled: f"it was settled meanwhile; {_SHOW}",
    ContentConflict: "the inbox has another content under its ID: publish it again, under a new ID",
    Unwritable: "PostgreSQL refuses a change of its inbox row: fix the trigger or constraint, then retry",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriver:
    """Redrives with the tables of an operator, and the inbox and the handler of a worker."""

    pool: asyncpg.Pool
    letters: DeadLetters
    inbox: InboxRepository
    handler: EventHandler
    lease_seconds: float

    async def redrive(self, seq: int, *, actor: str, reason: str) -> DeadLetterOutcome:
        """Handle one dead letter; without an effect it stays in the stream and in the inbox.

        Raises:
            UnavailableError: a server cannot be reached; repeating the redrive is safe.
        """
        check_accountable(actor, reason)
        try:
            entry = await self.letters.show(seq)
            message = await self._original(entry)
        except ContractError as error:
            return DeadLetterOutcome(seq=seq, message_id="", done=False, text=str(error))
        message_id = entry.message_id
        request = parse_message(message)
        if not isinstance(request, HandlerRequest) or request.message_id != message_id:
            text = f"{entry.reason}: it can never be handled as it is; publish it corrected, under a new ID"
            return DeadLetterOutcome(seq=seq, message_id=message_id, done=False, text=text, skipped=True)
        # Open the message, or the worker would skip it; an opened one is not processed.
        [opened] = await fetch(self.pool, SQL["redriven"].sql, UUID(message_id), actor, reason)
        try:
            done, text = True, "processed before; the dead letter is removed"
            if opened["open"]:
                done, text = await self._handle(entry, message, request)
            if done:
                await self.letters.remove(seq)
        except WorkerError:
            with suppress(WorkerError):
                await finish_action(self.pool, opened["action"], "failed")
            raise
        await finish_action(self.pool, opened["action"], "done" if done else "refused")
        return DeadLetterOutcome(seq=seq, message_id=message_id, done=done, text=text)

    async def _original(self, entry: DeadLetterEntry) -> InboundMessage:
        """Restore the message that was dead-lettered; read it from its stream if a part was omitted.

        Raises:
            ContractError: its body was omitted, and its stream does not have it.
        """
        if entry.body_omitted:
            return await self.letters.source(entry)
        if entry.headers_omitted:
            with suppress(ContractError):
                source = await self.letters.source(entry)
                if source.payload == entry.payload:  # a stream made anew has another message there
                    return source
        return entry.restored()

    async def _handle(
        self, entry: DeadLetterEntry, message: InboundMessage, request: HandlerRequest
    ) -> tuple[bool, str]:
        """Call the handler under a lease that is renewed; return whether it had its effect, and how."""
        recorded = InboxMessage(
            message_id=request.message_id,
            subject=message.subject,
            consumer=message.consumer,
            stream=message.stream,
            stream_seq=message.seq,
            content_hash=content_hash(message),
        )
        [run] = await self.inbox.insert_batch([recorded], lease_seconds=self.lease_seconds)
        if not isinstance(run, Lease):
            return False, _NOT_LEASED[type(run)].format(entry.message_id)
        async with renewing_lease(self.inbox, run, lease_seconds=self.lease_seconds):
            result = await self.handler.handle_request(request)
        if isinstance(result, Accepted):
            if await self.inbox.mark_processed_batch([run]):
                return True, f"processed, the handler answered {result.status}"
            return False, f"handled, but another worker has taken it over; {_SHOW.format(entry.message_id)}"
        # Record it as dead-lettered again: a WAITING message would never be delivered.
        await self.inbox.begin_dead_letter(run, reason=entry.reason, detail=f"redrive: {result.error}")
        await self.inbox.mark_dead_lettered([run])
        return False, f"{result.error}; the dead letter stays"


@asynccontextmanager
async def open_redriver(settings: Settings) -> AsyncIterator[Redriver]:
    """Connect to tables, stream and handler; tokens of the inbox's leases name this process."""
    async with AsyncExitStack() as stack:
        handler = open_handler(settings, concurrency=1)
        stack.push_async_callback(handler.close)
        pool = await stack.enter_async_context(open_tables(settings))
        worker_pool = await open_pool(settings, purpose="redrive")
        stack.push_async_callback(worker_pool.close)
        yield Redriver(
            pool=pool,
            letters=await stack.enter_async_context(open_dead_letters(settings)),
            inbox=PostgresInboxAdapter(pool=worker_pool, worker=f"redrive-{os.getpid()}"),
            handler=handler,
            lease_seconds=settings.inbox_lease_seconds,
        )


# --- Purge: delete dead letters for good, and give up their messages.


@asynccontextmanager
async def purging(
    pool: asyncpg.Pool, letters: DeadLetters, selection: Mapping[str, Any], *, actor: str, reason: str
) -> AsyncIterator[Callable[[int], Awaitable[DeadLetterOutcome]]]:
    """Keep one audit record for the block; yield a function that deletes one dead letter.

    Each is recorded in the inbox before it is deleted, so that an interrupted purge can be repeated. The dead
    letter of a message that is being handled again stays.
    """
    action = await begin_action(pool, "purge", selection, actor=actor, reason=reason)
    outcome: ActionOutcome = "refused"

    async def purge(seq: int) -> DeadLetterOutcome:
        nonlocal outcome
        before, outcome = outcome, "failed"
        try:
            entry = await letters.show(seq)
            id_: UUID | None = None
            with suppress(ValueError):  # another program stored a message that is no dead letter
                id_ = UUID(entry.message_id)
            note = f"purged by {actor}: {reason}"
            [row] = await fetch(pool, SQL["record_purge"].sql, id_, note, action)
            if not row["may_go"]:
                outcome = before
                text = f"its message is open again, as during a redrive; {_SHOW.format(entry.message_id)}"
                return DeadLetterOutcome(seq=seq, message_id=entry.message_id, done=False, text=text)
            await letters.remove(seq)
        except ContractError as error:
            outcome = before
            return DeadLetterOutcome(seq=seq, message_id="", done=False, text=str(error))
        outcome = "done"
        return DeadLetterOutcome(seq=seq, message_id=entry.message_id, done=True, text="deleted")

    try:
        yield purge
    finally:
        with suppress(WorkerError):
            await finish_action(pool, action, outcome)


@asynccontextmanager
async def open_purging(
    settings: Settings, selection: Mapping[str, Any], *, actor: str, reason: str
) -> AsyncIterator[tuple[DeadLetters, Callable[[int], Awaitable[DeadLetterOutcome]]]]:
    """Connect to tables and stream, and keep one audit record; see ``purging``."""
    async with (
        open_tables(settings) as pool,
        open_dead_letters(settings) as letters,
        purging(pool, letters, selection, actor=actor, reason=reason) as purge,
    ):
        yield letters, purge
