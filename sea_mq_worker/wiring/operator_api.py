"""Operator API of the page: commands on separate connections, one at a time and with a time limit."""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

from sea_mq_worker.admin.operator_api import (
    ActionResult,
    Body,
    DeadLetterCount,
    DeadLetterGroup,
    GroupProgress,
    ItemPage,
    LookupResult,
    OperatorBusyError,
    OperatorTimeoutError,
    RecordDetail,
)
from sea_mq_worker.connections import open_pool
from sea_mq_worker.errors import ContractError, RowsRefusedError
from sea_mq_worker.operators.database import operations, replays
from sea_mq_worker.operators.dead_letters import DeadLetterOutcome, can_be_handled, purger, redriver
from sea_mq_worker.operators.lookup import NoIdError, message_lookup
from sea_mq_worker.operators.lookup_report import lookup_report
from sea_mq_worker.operators.ports import DeadLetterStore
from sea_mq_worker.operators.records import (
    DeadEvent,
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetterSummary,
    OperatorAction,
    OutboxDetail,
    OutboxFilter,
)
from sea_mq_worker.operators.replay import outlook, replay_matching
from sea_mq_worker.operators.streams import dead_letters, duplicate_window_seconds
from sea_mq_worker.operators.tables import BY_INDEX, PostgresOverview
from sea_mq_worker.settings import Settings
from sea_mq_worker.wiring.context import abort_after_grace

# --- Groups of dead letters for the page: counts, and redrives or purges in small batches.

READ_MAX = 2000
"""Maximum number of dead letters read for one answer."""
_BATCH_MAX = 50
_SECONDS = 3.0
"""Time limit to begin another dead letter, in seconds, so that the page can show progress."""
_FAILURES_MAX = 10
"""Number of dead letters without an effect after which the batch stops: the handler still fails."""


async def dead_letter_groups(settings: Settings) -> ItemPage[DeadLetterCount]:
    """Count the oldest dead letters by reason and subject; ``more``: others follow."""
    groups: dict[tuple[str, str], DeadLetterCount] = {}
    read = 0
    async with dead_letters(settings) as letters:
        async for one in letters.walk(read_max=READ_MAX):
            read += 1
            key = (one.reason, one.original_subject)
            first = groups.get(key)
            groups[key] = DeadLetterCount(
                reason=one.reason,
                subject=one.original_subject,
                detail=first.detail if first else one.detail,
                oldest_at=first.oldest_at if first else one.stored_at,
                count=first.count + 1 if first else 1,
                last=one.seq,
                can_be_handled=(first is not None and first.can_be_handled) or can_be_handled(one),
            )
    items = sorted(groups.values(), key=lambda group: -group.count)
    return ItemPage(items=items, more=read == READ_MAX)


async def redrive_some(
    settings: Settings, group: DeadLetterGroup, *, actor: str, reason: str
) -> GroupProgress:
    """Send the next dead letters to the handler; one without an effect stays."""
    async with redriver(settings) as again:

        async def one(seq: int) -> DeadLetterOutcome:
            return await again.redrive(seq, actor=actor, reason=reason)

        return await _each(again.dead_letters, group, one)


async def purge_some(settings: Settings, group: DeadLetterGroup, *, actor: str, reason: str) -> GroupProgress:
    """Delete the next dead letters for good, and record it in the audit."""
    async with purger(settings, actor=actor, reason=reason) as tool, tool.recorded(asdict(group)) as delete:
        return await _each(tool.dead_letters, group, delete)


async def _each(
    letters: DeadLetterStore, group: DeadLetterGroup, do: Callable[[int], Awaitable[DeadLetterOutcome]]
) -> GroupProgress:
    which = DeadLetterFilter(reason=group.reason, subject=group.subject, after_seq=group.after)
    chosen = await letters.list(which, limit=_BATCH_MAX + 1, read_max=READ_MAX)
    seqs = [one.seq for one in chosen if one.seq <= group.last]
    done = failed = 0
    after, text, until = group.after, "", time.monotonic() + _SECONDS
    for seq in seqs[:_BATCH_MAX]:
        if failed >= _FAILURES_MAX or time.monotonic() > until:
            break
        outcome = await do(seq)
        done, failed, after = done + outcome.done, failed + (not outcome.done), seq
        text = text if outcome.done else outcome.text
    more = bool(seqs) and after < seqs[-1]
    return GroupProgress(done=done, failed=failed, after=after, text=text, more=more)


# --- Run the page's requests one at a time, each with a time limit, so that they cannot pile up.

_WAIT_SECONDS = 4.0
"""Time limit to wait for the previous request, in seconds."""

_T = TypeVar("_T")


class SerializedCalls:
    """A queue for one request at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Coroutine[Any, Any, _T], *, seconds: float) -> _T:
        """Run ``work`` after the previous request, and cancel it after ``seconds``.

        Raises:
            OperatorBusyError: the previous request took too long.
            OperatorTimeoutError: ``work`` took too long.
        """
        try:
            await asyncio.wait_for(self._lock.acquire(), _WAIT_SECONDS)
        except TimeoutError:
            work.close()
            raise OperatorBusyError from None
        try:
            return await _bounded(work, seconds)
        finally:
            self._lock.release()


async def _bounded(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Limit the work's time, including its cleanup, which a hanging server would block."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            text = f"no response within {seconds:g} s: see the health summary for the servers' state"
            raise OperatorTimeoutError(text)
    finally:
        await abort_after_grace(task)
    return task.result()


_REQUEST_SECONDS = 8.0
_HANDLING_SPARE_SECONDS = 20.0
_PAGE = 50
_ACTIONS = 20
_SHOWN_BYTES_MAX = 64 * 1024
_GRANT = (
    "the worker's own role may not do this: run the command as an operator, or grant the operator's "
    "role to the worker's login, as in sql/roles.sql"
)
_PERMIT = (
    "the worker's own NATS user may not do this: run the command as sea_operator, or grant the permission "
    "(deploy/nats-accounts.conf)"
)
_P = ParamSpec("_P")
_Method: TypeAlias = "Callable[Concatenate[WorkerOperatorApi, _P], Coroutine[Any, Any, _T]]"


def _request(method: "_Method[_P, _T]") -> "_Method[_P, _T]":
    """Run the method after the request before it, with the time limit of a query."""

    @wraps(method)
    async def run(api: "WorkerOperatorApi", /, *args: _P.args, **named: _P.kwargs) -> _T:
        return await api.run(method(api, *args, **named), _REQUEST_SECONDS)

    return run


class WorkerOperatorApi:
    """Implements the port ``OperatorApi``; the methods are documented there."""

    def __init__(self, settings: Settings) -> None:
        seconds = min(settings.database_timeout_seconds, _REQUEST_SECONDS)
        few = {"database_pool_max": 1, "database_timeout_seconds": seconds}
        self._settings = settings.model_copy(update=few)
        self._serialized = SerializedCalls()
        self._handling_seconds = settings.handler_timeout_seconds + _HANDLING_SPARE_SECONDS

    async def run(self, request: Coroutine[Any, Any, _T], seconds: float) -> _T:
        with _naming_grants():
            return await self._serialized.run(request, seconds=seconds)

    @_request
    async def lookup(self, text: str) -> LookupResult:
        async with message_lookup(self._settings) as place:
            try:
                report = await lookup_report(text, place)
            except NoIdError as error:
                raise ValueError(str(error)) from error
        found = report.found
        return LookupResult(
            id=report.id,
            answer=report.answer,
            steps=report.steps,
            next_steps=report.next_steps,
            matches=report.matches,
            not_checked=report.not_checked,
            event=found.event if found else None,
            dead_letters=found.dead_letters if found else (),
        )

    @_request
    async def dead_events(self, *, event_type: str, error: str, below: int | None) -> ItemPage[DeadEvent]:
        pool = await open_pool(self._settings, purpose="page", hints=BY_INDEX)
        try:
            found = await PostgresOverview(pool=pool).dead_events(
                event_type=event_type or None, error=error or None, below=below, limit=_PAGE + 1
            )
        finally:
            await pool.close()
        return ItemPage(items=found[:_PAGE], more=len(found) > _PAGE)

    @_request
    async def event(self, id_: UUID) -> RecordDetail | None:
        async with operations(self._settings) as tables:
            found = await tables.show_outbox(id_, content_max=_SHOWN_BYTES_MAX)
        return _detail(found, found.payload.encode(), found.payload_bytes) if found else None

    @_request
    async def dead_letters(self, *, reason: str, after: int) -> ItemPage[DeadLetterSummary]:
        which = DeadLetterFilter(reason=reason or None, after_seq=after)
        async with dead_letters(self._settings) as letters:
            found = await letters.list(which, limit=_PAGE + 1, read_max=READ_MAX)
        return ItemPage(items=found[:_PAGE], more=len(found) > _PAGE)

    @_request
    async def dead_letter_groups(self) -> ItemPage[DeadLetterCount]:
        return await dead_letter_groups(self._settings)

    @_request
    async def dead_letter(self, seq: int) -> RecordDetail:
        async with dead_letters(self._settings) as letters:
            found = await letters.show(seq)
        detail = _detail(found, found.payload, len(found.payload))
        return replace(detail, fields={**detail.fields, "can_be_handled": can_be_handled(found)})

    @_request
    async def actions(self) -> ItemPage[OperatorAction]:
        async with operations(self._settings) as tables:
            return ItemPage(items=await tables.audit(limit=_ACTIONS))

    @_request
    async def replay(self, id_: UUID, *, actor: str, reason: str) -> ActionResult:
        async with replays(self._settings) as tables:
            which = OutboxFilter(ids=(id_,))
            result = await replay_matching(tables, which, actor=_on_page(actor), reason=reason, cap=1)
        if result.replayed:
            window = await duplicate_window_seconds(self._settings)
            when = outlook(result, window, now=datetime.now(UTC))
            return ActionResult(done=True, text="; ".join(["it is PENDING again", *when]))
        return ActionResult(done=False, text="it is neither PUBLISHED nor DEAD")

    @_request
    async def resume(self, event_type: str, *, actor: str, reason: str) -> ActionResult:
        async with operations(self._settings) as tables:
            await tables.resume(event_type, actor=_on_page(actor), reason=reason)
        text = f"{event_type or 'every slow event type'} continues at full speed within seconds"
        return ActionResult(done=True, text=text)

    @_request
    async def purge_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> GroupProgress:
        return await purge_some(self._settings, group, actor=_on_page(actor), reason=reason)

    async def redrive_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> GroupProgress:
        some = redrive_some(self._settings, group, actor=_on_page(actor), reason=reason)
        return await self.run(some, self._handling_seconds)

    async def redrive(self, seq: int, *, actor: str, reason: str) -> ActionResult:
        return await self.run(self._redrive(seq, _on_page(actor), reason), self._handling_seconds)

    async def _redrive(self, seq: int, actor: str, reason: str) -> ActionResult:
        async with redriver(self._settings) as again:
            outcome = await again.redrive(seq, actor=actor, reason=reason)
        return ActionResult(done=outcome.done, text=outcome.text)


@contextmanager
def _naming_grants() -> Iterator[None]:
    """Name the missing right in an error: the worker's own roles have the least rights.

    Raises:
        ContractError: a right is missing, or something is not as required.
    """
    try:
        yield
    except ContractError as error:
        text = str(error)
        if "SQLSTATE 42501" in text and not isinstance(error, RowsRefusedError):  # a trigger's own lack
            raise ContractError(f"{text}; {_GRANT}") from error
        if "permission" in text:
            raise ContractError(f"{text}; {_PERMIT}") from error
        raise


def _on_page(actor: str) -> str:
    return f"{actor} (page)"


def _detail(record: OutboxDetail | DeadLetterEntry, payload: bytes, size: int) -> RecordDetail:
    """Return a record with its payload as text, or in base64 if it is no text, up to 64 KiB."""
    cut = payload[:_SHOWN_BYTES_MAX]
    try:
        text = cut.decode(errors="strict" if len(cut) == size else "ignore")
        encoding = "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(cut).decode(), "base64"
    body = Body(
        payload=text,
        payload_encoding=encoding,
        payload_bytes=size,
        payload_cut=len(cut) < size,
    )
    fields = {
        name: value for name, value in asdict(record).items() if name not in {"payload", "payload_bytes"}
    }
    return RecordDetail(fields=fields, body=body)
