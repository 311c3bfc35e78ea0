"""The page's API: each route reads its arguments, calls the operators' functions, and returns its JSON.

Requests run one at a time, each on connections of its own and with a time limit, so that they cannot pile up.
"""

import asyncio
import base64
import re
import time
from codecs import utf_8_decode
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, TypeAlias
from uuid import UUID

from sea_mq_worker.admin.http import RefusedError, Request, Response, json_response
from sea_mq_worker.connections import open_pool
from sea_mq_worker.errors import ContractError, UnavailableError
from sea_mq_worker.nats.errors import PublishDeniedError
from sea_mq_worker.operators import tables
from sea_mq_worker.operators.changes import resume
from sea_mq_worker.operators.dead_letters import (
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetters,
    can_be_handled,
    open_dead_letters,
)
from sea_mq_worker.operators.lookup import NoIdError, lookup_report, open_lookup
from sea_mq_worker.operators.records import OutboxDetail, OutboxFilter
from sea_mq_worker.operators.redrive import DeadLetterOutcome, open_purging, open_redriver
from sea_mq_worker.operators.replay import outlook, replay_matching
from sea_mq_worker.operators.streams import duplicate_window_seconds
from sea_mq_worker.postgres.errors import PrivilegeError
from sea_mq_worker.runtime.waiting import abort_after_grace
from sea_mq_worker.settings import Settings

_PAGE = 50
_ACTIONS = 20
_SHOWN_BYTES_MAX = 64 * 1024
_READ_MAX = 2000
"""Maximum number of dead letters read for one answer."""
_BATCH_MAX = 50
_BATCH_SECONDS = 3.0
"""Time limit to begin another dead letter, so that the page can show progress."""
_FAILURES_MAX = 10
"""Number of dead letters without an effect after which a batch stops: the handler still fails."""

# --- Look: an event or message, the dead events, the dead letters, the audit.


async def lookup(settings: Settings, request: Request, _: str) -> object:
    """Find an event or message in outbox, stream, inbox and dead letters."""
    text = _text(request, "id")
    async with open_lookup(settings) as place:
        try:
            report = await lookup_report(text, place)
        except NoIdError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from error
    return {
        "id": report.id,
        "answer": report.answer,
        "steps": report.steps,
        "next_steps": report.next_steps,
        "matches": report.matches,
        "not_checked": report.not_checked,
        "event": report.found.event if report.found else None,
        "dead_letters": report.found.dead_letters if report.found else (),
    }


async def dead_events(settings: Settings, request: Request, _: str) -> object:
    """List DEAD events without their content, the latest first, with `seq` below `below`."""
    event_type, error = _text(request, "type"), _text(request, "error")
    below = _number(request.query["below"]) if "below" in request.query else None
    pool = await open_pool(settings, purpose="page", hints=tables.BY_INDEX)
    try:
        found = await tables.dead_events(
            pool, event_type=event_type or None, error=error or None, below=below, limit=_PAGE + 1
        )
    finally:
        await pool.close()
    return {"items": found[:_PAGE], "more": len(found) > _PAGE}


async def event(settings: Settings, _: Request, id_: str) -> object:
    """Return one event with its payload."""
    event_id = _uuid(id_)
    async with tables.open_tables(settings) as pool:
        found = await tables.show_outbox(pool, event_id, content_max=_SHOWN_BYTES_MAX)
    return _with_body(found, found.payload.encode(), found.payload_bytes) if found else None


async def dead_letters(settings: Settings, request: Request, _: str) -> object:
    """List dead letters without their content, the oldest first, with `seq` after `after`."""
    after = _number(request.query.get("after", "0"))
    which = DeadLetterFilter(reason=_text(request, "reason") or None, after_seq=after)
    async with open_dead_letters(settings) as letters:
        found = await letters.list(which, limit=_PAGE + 1, read_max=_READ_MAX)
    return {"items": found[:_PAGE], "more": len(found) > _PAGE}


async def dead_letter_groups(settings: Settings, _: Request, __: str) -> object:
    """Count the oldest 2,000 dead letters by reason and original subject, the most frequent first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    read = 0
    async with open_dead_letters(settings) as letters:
        async for one in letters.walk(read_max=_READ_MAX):
            read += 1
            reason, subject = one.reason, one.original_subject
            group = groups.setdefault(
                (reason, subject),
                {"reason": reason, "subject": subject, "detail": one.detail, "oldest_at": one.stored_at}
                | {"count": 0, "can_be_handled": False},
            )
            group["count"] += 1
            group["last"] = one.seq
            group["can_be_handled"] = group["can_be_handled"] or can_be_handled(one)
    items = sorted(groups.values(), key=lambda group: -group["count"])
    return {"items": items, "more": read == _READ_MAX}


async def dead_letter(settings: Settings, _: Request, seq: str) -> object:
    """Return one dead letter with the original's body."""
    number = _number(seq)
    async with open_dead_letters(settings) as letters:
        found = await letters.show(number)
    shown = _with_body(found, found.payload, len(found.payload))
    shown["fields"]["can_be_handled"] = can_be_handled(found)
    return shown


async def actions(settings: Settings, _: Request, __: str) -> object:
    """List operators' changes, the latest first."""
    async with tables.open_tables(settings) as pool:
        return {"items": await tables.audit(pool, limit=_ACTIONS), "more": False}


def _with_body(record: OutboxDetail | DeadLetterEntry, payload: bytes, size: int) -> dict[str, Any]:
    """Return a record with its payload as text, or in base64 if it is no text, up to 64 KiB."""
    cut = payload[:_SHOWN_BYTES_MAX]
    try:
        text, encoding = utf_8_decode(cut, "strict", len(cut) == size)[0], "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(cut).decode(), "base64"
    fields = {
        name: value for name, value in asdict(record).items() if name not in {"payload", "payload_bytes"}
    }
    return {
        "fields": fields,
        "body": {
            "payload": text,
            "payload_encoding": encoding,
            "payload_bytes": size,
            "payload_cut": len(cut) < size,
        },
    }


# --- Change: one event, one dead letter, a group of dead letters, a slow event type.


async def replay(settings: Settings, request: Request, id_: str) -> object:
    """Publish an event again."""
    which, (actor, reason) = OutboxFilter(ids=(_uuid(id_),)), _why(request)
    async with tables.open_tables(settings) as pool:
        result = await replay_matching(pool, which, actor=actor, reason=reason, cap=1)
    if not result.replayed:
        return {"done": False, "text": "it is neither PUBLISHED nor DEAD"}
    window = await duplicate_window_seconds(settings)
    when = outlook(result, window, now=datetime.now(UTC))
    return {"done": True, "text": "; ".join(["it is PENDING again", *when])}


async def redrive(settings: Settings, request: Request, seq: str) -> object:
    """Send a dead letter to the handler again."""
    number, (actor, reason) = _number(seq), _why(request)
    async with open_redriver(settings) as again:
        outcome = await again.redrive(number, actor=actor, reason=reason)
    return {"done": outcome.done, "text": outcome.text}


async def redrive_group(settings: Settings, request: Request, _: str) -> object:
    """Send the next dead letters of a group to the handler again; one without an effect stays."""
    group, (actor, reason) = _group(request), _why(request)
    async with open_redriver(settings) as again:
        return await _next_of(
            group, again.letters, lambda seq: again.redrive(seq, actor=actor, reason=reason)
        )


async def purge_group(settings: Settings, request: Request, _: str) -> object:
    """Delete the next dead letters of a group for good."""
    group, (actor, reason) = _group(request), _why(request)
    async with open_purging(settings, group, actor=actor, reason=reason) as (letters, purge):
        return await _next_of(group, letters, purge)


async def _next_of(
    group: Mapping[str, Any], letters: DeadLetters, change: Callable[[int], Awaitable[DeadLetterOutcome]]
) -> object:
    """Change the next of a group; the page goes on after ``after`` while there is ``more``."""
    which = DeadLetterFilter(reason=group["reason"], subject=group["subject"], after_seq=group["after"])
    chosen = await letters.list(which, limit=_BATCH_MAX + 1, read_max=_READ_MAX)
    seqs = [one.seq for one in chosen if one.seq <= group["last"]]
    done = failed = 0
    after, text, until = which.after_seq, "", time.monotonic() + _BATCH_SECONDS
    for seq in seqs[:_BATCH_MAX]:
        if failed >= _FAILURES_MAX or time.monotonic() > until:
            break
        outcome = await change(seq)
        after = seq
        if outcome.done:
            done += 1
        else:
            failed, text = failed + 1, outcome.text
    more = bool(seqs) and after < seqs[-1]
    return {"done": done, "failed": failed, "after": after, "text": text, "more": more}


async def resume_type(settings: Settings, request: Request, _: str) -> object:
    """End the slow pace of an event type, or of all if it is empty."""
    event_type, (actor, reason) = request.body.get("event_type"), _why(request)
    if not isinstance(event_type, str) or len(event_type) > _EVENT_TYPE_MAX or not event_type.isprintable():
        raise RefusedError(HTTPStatus.BAD_REQUEST, "give the event_type; an empty one means all slow types")
    async with tables.open_tables(settings) as pool:
        await resume(pool, event_type, actor=actor, reason=reason)
    text = f"{event_type or 'every slow event type'} continues at full speed within seconds"
    return {"done": True, "text": text}


# --- Arguments; each reader raises RefusedError with status 400.

_ACTOR_MAX = 80
_REASON_MAX = 500
_TEXT_MAX = 200
_EVENT_TYPE_MAX = 1024
_SEQ_MAX = 2**63 - 1


def _why(request: Request) -> tuple[str, str]:
    """Read actor and reason for the audit, which says that the actor used the page."""
    found = []
    for name, most in (("actor", _ACTOR_MAX), ("reason", _REASON_MAX)):
        value = request.body.get(name)
        if not isinstance(value, str) or not value.strip() or len(value) > most or not value.isprintable():
            text = f"give {name} on one line of at most {most} characters"
            raise RefusedError(HTTPStatus.BAD_REQUEST, text)
        found.append(value.strip())
    return f"{found[0]} (page)", found[1]


def _group(request: Request) -> Mapping[str, Any]:
    """Read a group: dead letters of one reason and subject, with sequences after one up to a last."""
    match request.body:
        case {"dlq_reason": str(reason), "subject": str(subject), "after": int(after), "last": int(last)}:
            return {"reason": reason, "subject": subject, "after": after, "last": last}
        case _:
            text = "give the group: dlq_reason, subject, after and last, as in the list of groups"
            raise RefusedError(HTTPStatus.BAD_REQUEST, text)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        shown = "an id is a UUID, as 0198c3a2-5f7e-7c31-9f0e-3b8a4d2e6c10"
        raise RefusedError(HTTPStatus.BAD_REQUEST, shown) from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_SEQ_MAX)) and int(text) <= _SEQ_MAX):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "a sequence is a whole number")
    return int(text)


def _text(request: Request, name: str) -> str:
    text = request.query.get(name, "")
    if len(text) > _TEXT_MAX or "\0" in text:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name}: at most {_TEXT_MAX} characters")
    return text


# --- The routes, and how a request to one of them runs.

_Call: TypeAlias = Callable[[Settings, Request, str], Coroutine[Any, Any, object]]

ROUTES: tuple[tuple[str, str, _Call], ...] = (
    ("GET", "/api/lookup", lookup),
    ("GET", "/api/events", dead_events),
    ("GET", "/api/events/{id}", event),
    ("POST", "/api/events/{id}/replay", replay),
    ("GET", "/api/dead-letters", dead_letters),
    ("GET", "/api/dead-letter-groups", dead_letter_groups),
    ("POST", "/api/dead-letter-groups/redrive", redrive_group),
    ("POST", "/api/dead-letter-groups/purge", purge_group),
    ("GET", "/api/dead-letters/{seq}", dead_letter),
    ("POST", "/api/dead-letters/{seq}/redrive", redrive),
    ("POST", "/api/slow-types/resume", resume_type),
    ("GET", "/api/actions", actions),
)
"""Method, path and call; the call gets the part of the path in braces."""

_WAIT_SECONDS = 4.0
"""Time limit to wait for the previous request."""
_REQUEST_SECONDS = 8.0
_HANDLING_SPARE_SECONDS = 20.0
"""A redrive calls the handler: it may take as long as a call, and this much more."""
_RIGHTS = {
    PrivilegeError: "the worker's own role may not do this: run the command as an operator, or grant the "
    "operator's role to the worker's login, as in sql/roles.sql",
    PublishDeniedError: "the worker's own NATS user may not do this: run the command as sea_operator, or "
    "grant the permission (deploy/nats-accounts.conf)",
}
"""What to do about a missing right: the worker's own roles have the least rights."""


class OperatorApi:
    """Queries and changes for an operator with the token, which the server has checked."""

    def __init__(self, settings: Settings) -> None:
        seconds = min(settings.database_timeout_seconds, _REQUEST_SECONDS)
        few = {"database_pool_max": 1, "database_timeout_seconds": seconds}
        self._settings = settings.model_copy(update=few)
        self._handling_seconds = settings.handler_timeout_seconds + _HANDLING_SPARE_SECONDS
        self._turn = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        """Answer a request below ``/api/``.

        Raises:
            RefusedError: it cannot be answered; its change may have happened after a time-out (504).
        """
        for method, path, call in ROUTES:
            found = re.fullmatch(re.sub(r"\{\w+\}", "([^/]+)", path), request.path)
            if found is None:
                continue
            if request.method != method:
                raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "", f"allow: {method}")
            try:
                data = await self._in_turn(call, request, found.group(1) if found.groups() else "")
            except UnavailableError as error:
                raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
            except ContractError as error:
                hint = _RIGHTS.get(type(error))
                raise RefusedError(HTTPStatus.CONFLICT, f"{error}; {hint}" if hint else str(error)) from error
            if data is None:
                raise RefusedError(HTTPStatus.NOT_FOUND, "it does not exist, or no longer")
            return json_response(data)
        raise RefusedError(HTTPStatus.NOT_FOUND)

    async def _in_turn(self, call: _Call, request: Request, which: str) -> object:
        """Run a call after the one before it, and cancel it after its time, however its cleanup hangs."""
        try:
            await asyncio.wait_for(self._turn.acquire(), _WAIT_SECONDS)
        except TimeoutError:
            text = "another request is running: retry in a second"
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, text, "retry-after: 1") from None
        try:
            seconds = self._handling_seconds if call in {redrive, redrive_group} else _REQUEST_SECONDS
            task = asyncio.create_task(call(self._settings, request, which))
            try:
                await asyncio.wait({task}, timeout=seconds)
                if not task.done():
                    text = f"no response within {seconds:g} s: see the health summary for the servers' state"
                    raise RefusedError(HTTPStatus.GATEWAY_TIMEOUT, text)
            finally:
                await abort_after_grace(task)
            return task.result()
        finally:
            self._turn.release()
