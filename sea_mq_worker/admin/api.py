"""The page's API: an operator's queries and changes, each a route, a call and the record that it returns.

Calls use connections of their own, one request at a time and each with a time limit.
"""

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from http import HTTPStatus
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

from sea_mq_worker.admin.http import AdminResponse, Request, json_response, refusal
from sea_mq_worker.connections import open_pool
from sea_mq_worker.errors import ContractError, RowsRefusedError, UnavailableError
from sea_mq_worker.operators.changes import resume
from sea_mq_worker.operators.dead_letters import (
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetters,
    DeadLetterSummary,
    can_be_handled,
    open_dead_letters,
)
from sea_mq_worker.operators.lookup import NoIdError, lookup_report, open_lookup
from sea_mq_worker.operators.records import (
    DeadEvent,
    OperatorAction,
    OutboxDetail,
    OutboxFilter,
)
from sea_mq_worker.operators.redrive import DeadLetterOutcome, open_purging, open_redriver
from sea_mq_worker.operators.replay import outlook, replay_matching
from sea_mq_worker.operators.streams import duplicate_window_seconds
from sea_mq_worker.operators.tables import BY_INDEX, audit, dead_events, open_tables, show_outbox
from sea_mq_worker.runtime.waiting import abort_after_grace
from sea_mq_worker.settings import Settings

# --- What a call returns: the fields are the keys of the JSON.

_ItemT_co = TypeVar("_ItemT_co", covariant=True)


class OperatorBusyError(Exception):
    """Another request is running; retry in a moment."""


class OperatorTimeoutError(Exception):
    """The request took too long and was cancelled; its change may or may not have happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters of one reason and original subject, with sequences after ``after`` up to ``last``."""

    reason: str
    subject: str
    after: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCount:
    """Size of a group.

    Attributes:
        detail: its first letter's.
        last: its highest sequence.
        can_be_handled: whether a redrive would call the handler for at least one of them.
    """

    reason: str
    subject: str
    detail: str
    oldest_at: datetime
    count: int
    last: int
    can_be_handled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage(Generic[_ItemT_co]):
    """One page of a list; ``more``: there is a next page."""

    items: Sequence[_ItemT_co]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A payload as text, or in base64 if it is no text; ``payload_cut``: only its beginning."""

    payload: str
    payload_encoding: str
    payload_bytes: int
    payload_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDetail:
    """One event or dead letter: its fields by name, and its payload."""

    fields: Mapping[str, object]
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupResult:
    """Location of an event or message.

    Attributes:
        answer: sentences, the most important first.
        steps: what happened to it, the earliest first.
        next_steps: commands for the operator.
        matches: events and messages with the given beginning of an id.
        not_checked: places that could not be searched, with the reason.
        event: the outbox event, if one was found.
    """

    id: str
    answer: Sequence[str]
    steps: Sequence[object]
    next_steps: Sequence[str]
    matches: Sequence[object]
    not_checked: Sequence[str]
    event: object | None
    dead_letters: Sequence[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """Outcome of a change; ``text`` is its reason or effect."""

    done: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """Progress of a change to a group.

    Attributes:
        done: number of changed dead letters.
        failed: number of failures; ``text`` is the last one's.
        after: sequence to continue after.
        more: whether dead letters are left.
    """

    done: int
    failed: int
    after: int
    text: str
    more: bool


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
    async with open_dead_letters(settings) as letters:
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
    async with open_redriver(settings) as again:

        async def one(seq: int) -> DeadLetterOutcome:
            return await again.redrive(seq, actor=actor, reason=reason)

        return await _each(again.letters, group, one)


async def purge_some(settings: Settings, group: DeadLetterGroup, *, actor: str, reason: str) -> GroupProgress:
    """Delete the next dead letters for good, and record it in the audit."""
    async with open_purging(settings, asdict(group), actor=actor, reason=reason) as (letters, purge):
        return await _each(letters, group, purge)


async def _each(
    letters: DeadLetters, group: DeadLetterGroup, do: Callable[[int], Awaitable[DeadLetterOutcome]]
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
_Method: TypeAlias = "Callable[Concatenate[OperatorApi, _P], Coroutine[Any, Any, _T]]"


def _request(method: "_Method[_P, _T]") -> "_Method[_P, _T]":
    """Run the method after the request before it, with the time limit of a query."""

    @wraps(method)
    async def run(api: "OperatorApi", /, *args: _P.args, **named: _P.kwargs) -> _T:
        return await api.run(method(api, *args, **named), _REQUEST_SECONDS)

    return run


class OperatorApi:
    """Queries and changes for an operator with the token.

    Every method raises OperatorBusyError, OperatorTimeoutError and the product's UnavailableError and
    ContractError; the audit records ``actor`` and ``reason``.
    """

    def __init__(self, settings: Settings) -> None:
        seconds = min(settings.database_timeout_seconds, _REQUEST_SECONDS)
        few = {"database_pool_max": 1, "database_timeout_seconds": seconds}
        self._settings = settings.model_copy(update=few)
        self._lock = asyncio.Lock()
        self._handling_seconds = settings.handler_timeout_seconds + _HANDLING_SPARE_SECONDS

    async def run(self, request: Coroutine[Any, Any, _T], seconds: float) -> _T:
        """Run a request after the one before it, and cancel it after ``seconds``."""
        try:
            await asyncio.wait_for(self._lock.acquire(), _WAIT_SECONDS)
        except TimeoutError:
            request.close()
            raise OperatorBusyError from None
        try:
            with _naming_grants():
                return await _bounded(request, seconds)
        finally:
            self._lock.release()

    @_request
    async def lookup(self, text: str) -> LookupResult:
        """Find an event or message in outbox, stream, inbox and dead letters."""
        async with open_lookup(self._settings) as place:
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
        """List DEAD events without their content, the latest first, with ``seq`` below ``below``."""
        pool = await open_pool(self._settings, purpose="page", hints=BY_INDEX)
        try:
            found = await dead_events(
                pool, event_type=event_type or None, error=error or None, below=below, limit=_PAGE + 1
            )
        finally:
            await pool.close()
        return ItemPage(items=found[:_PAGE], more=len(found) > _PAGE)

    @_request
    async def event(self, id_: UUID) -> RecordDetail | None:
        """Return one event with its payload."""
        async with open_tables(self._settings) as pool:
            found = await show_outbox(pool, id_, content_max=_SHOWN_BYTES_MAX)
        return _detail(found, found.payload.encode(), found.payload_bytes) if found else None

    @_request
    async def dead_letters(self, *, reason: str, after: int) -> ItemPage[DeadLetterSummary]:
        """List dead letters without their content, the oldest first, with ``seq`` after ``after``."""
        which = DeadLetterFilter(reason=reason or None, after_seq=after)
        async with open_dead_letters(self._settings) as letters:
            found = await letters.list(which, limit=_PAGE + 1, read_max=READ_MAX)
        return ItemPage(items=found[:_PAGE], more=len(found) > _PAGE)

    @_request
    async def dead_letter_groups(self) -> ItemPage[DeadLetterCount]:
        """Count dead letters by reason and original subject, the most frequent first."""
        return await dead_letter_groups(self._settings)

    @_request
    async def dead_letter(self, seq: int) -> RecordDetail:
        """Return one dead letter with the original's body."""
        async with open_dead_letters(self._settings) as letters:
            found = await letters.show(seq)
        detail = _detail(found, found.payload, len(found.payload))
        return replace(detail, fields={**detail.fields, "can_be_handled": can_be_handled(found)})

    @_request
    async def actions(self) -> ItemPage[OperatorAction]:
        """List operators' changes, the latest first."""
        async with open_tables(self._settings) as pool:
            return ItemPage(items=await audit(pool, limit=_ACTIONS))

    @_request
    async def replay(self, id_: UUID, *, actor: str, reason: str) -> ActionResult:
        """Publish an event again."""
        async with open_tables(self._settings) as pool:
            which = OutboxFilter(ids=(id_,))
            result = await replay_matching(pool, which, actor=_on_page(actor), reason=reason, cap=1)
        if result.replayed:
            window = await duplicate_window_seconds(self._settings)
            when = outlook(result, window, now=datetime.now(UTC))
            return ActionResult(done=True, text="; ".join(["it is PENDING again", *when]))
        return ActionResult(done=False, text="it is neither PUBLISHED nor DEAD")

    @_request
    async def resume(self, event_type: str, *, actor: str, reason: str) -> ActionResult:
        """End the slow pace of an event type, or of all if it is empty."""
        async with open_tables(self._settings) as pool:
            await resume(pool, event_type, actor=_on_page(actor), reason=reason)
        text = f"{event_type or 'every slow event type'} continues at full speed within seconds"
        return ActionResult(done=True, text=text)

    @_request
    async def purge_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> GroupProgress:
        """Delete the next dead letters of a group for good."""
        return await purge_some(self._settings, group, actor=_on_page(actor), reason=reason)

    async def redrive_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> GroupProgress:
        """Send the next dead letters of a group to the handler again."""
        some = redrive_some(self._settings, group, actor=_on_page(actor), reason=reason)
        return await self.run(some, self._handling_seconds)

    async def redrive(self, seq: int, *, actor: str, reason: str) -> ActionResult:
        """Send a dead letter to the handler again."""
        return await self.run(self._redrive(seq, _on_page(actor), reason), self._handling_seconds)

    async def _redrive(self, seq: int, actor: str, reason: str) -> ActionResult:
        async with open_redriver(self._settings) as again:
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


# --- Routes.

_ACTOR_MAX = 80
_REASON_MAX = 500
_TEXT_MAX = 200
_EVENT_TYPE_MAX = 1024
_SEQ_MAX = 2**63 - 1

_Arguments: TypeAlias = Callable[[Request, str], Mapping[str, Any]]


async def dispatch(api: OperatorApi, request: Request) -> AdminResponse:
    """Answer a request below ``/api/``."""
    for method, path, call, arguments in ROUTES:
        found = _PATTERNS[path].fullmatch(request.path)
        if found is None:
            continue
        if request.method != method:
            return AdminResponse(HTTPStatus.METHOD_NOT_ALLOWED, headers=(f"allow: {method}",))
        return await _respond(
            api, call.__name__, arguments, request, found.group(1) if found.groups() else ""
        )
    return AdminResponse(HTTPStatus.NOT_FOUND)


async def _respond(
    api: OperatorApi, call: str, arguments: _Arguments, request: Request, which: str
) -> AdminResponse:
    try:
        data = await getattr(api, call)(**arguments(request, which))
    except ValueError as error:
        return refusal(HTTPStatus.BAD_REQUEST, str(error))
    except OperatorBusyError:
        return refusal(
            HTTPStatus.TOO_MANY_REQUESTS, "another request is running: retry in a second", "retry-after: 1"
        )
    except OperatorTimeoutError as error:
        return refusal(HTTPStatus.GATEWAY_TIMEOUT, str(error))
    except UnavailableError as error:
        return refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    except ContractError as error:
        return refusal(HTTPStatus.CONFLICT, str(error))
    return (
        refusal(HTTPStatus.NOT_FOUND, "it does not exist, or no longer")
        if data is None
        else json_response(data)
    )


ROUTES: tuple[tuple[str, str, Callable[..., Awaitable[object]], _Arguments], ...] = (
    ("GET", "/api/lookup", OperatorApi.lookup, lambda r, _: {"text": _text(r.query, "id")}),
    (
        "GET",
        "/api/events",
        OperatorApi.dead_events,
        lambda r, _: {
            "event_type": _text(r.query, "type"),
            "error": _text(r.query, "error"),
            "below": _number(r.query["below"]) if "below" in r.query else None,
        },
    ),
    ("GET", "/api/events/{id}", OperatorApi.event, lambda _, id_: {"id_": _uuid(id_)}),
    (
        "POST",
        "/api/events/{id}/replay",
        OperatorApi.replay,
        lambda r, id_: {"id_": _uuid(id_), **_actor_and_reason(r)},
    ),
    (
        "GET",
        "/api/dead-letters",
        OperatorApi.dead_letters,
        lambda r, _: {"reason": _text(r.query, "reason"), "after": _number(r.query.get("after", "0"))},
    ),
    ("GET", "/api/dead-letter-groups", OperatorApi.dead_letter_groups, lambda *_: {}),
    (
        "POST",
        "/api/dead-letter-groups/redrive",
        OperatorApi.redrive_group,
        lambda r, _: {"group": _group(r), **_actor_and_reason(r)},
    ),
    (
        "POST",
        "/api/dead-letter-groups/purge",
        OperatorApi.purge_group,
        lambda r, _: {"group": _group(r), **_actor_and_reason(r)},
    ),
    ("GET", "/api/dead-letters/{seq}", OperatorApi.dead_letter, lambda _, seq: {"seq": _number(seq)}),
    (
        "POST",
        "/api/dead-letters/{seq}/redrive",
        OperatorApi.redrive,
        lambda r, seq: {"seq": _number(seq), **_actor_and_reason(r)},
    ),
    (
        "POST",
        "/api/slow-types/resume",
        OperatorApi.resume,
        lambda r, _: {"event_type": _event_type(r), **_actor_and_reason(r)},
    ),
    ("GET", "/api/actions", OperatorApi.actions, lambda *_: {}),
)
"""By method and path, the call and its arguments; the schema of the API is made from these."""

_PATTERNS = {path: re.compile(re.sub(r"\{\w+\}", "([^/]+)", path)) for _, path, *_ in ROUTES}


def _actor_and_reason(request: Request) -> dict[str, str]:
    """Read actor and reason for the audit.

    Raises:
        ValueError: one is missing or too long.
    """
    found = {}
    for name, most in (("actor", _ACTOR_MAX), ("reason", _REASON_MAX)):
        value = request.body.get(name)
        if not isinstance(value, str) or not value.strip() or len(value) > most or not value.isprintable():
            raise ValueError(f"give {name} on one line of at most {most} characters")
        found[name] = value.strip()
    return found


def _group(request: Request) -> DeadLetterGroup:
    """Read the group of dead letters.

    Raises:
        ValueError: a field is missing or has a wrong type.
    """
    match request.body:
        case {"dlq_reason": str(reason), "subject": str(subject), "after": int(after), "last": int(last)}:
            return DeadLetterGroup(reason=reason, subject=subject, after=after, last=last)
        case _:
            raise ValueError("give the group: dlq_reason, subject, after and last, as in the list of groups")


def _event_type(request: Request) -> str:
    """Read the event type; empty: all slow ones.

    Raises:
        ValueError: it is missing or invalid.
    """
    value = request.body.get("event_type")
    if not isinstance(value, str) or len(value) > _EVENT_TYPE_MAX or not value.isprintable():
        raise ValueError("give the event_type; an empty one means all slow types")
    return value


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ValueError("an id is a UUID, as 0198c3a2-5f7e-7c31-9f0e-3b8a4d2e6c10") from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_SEQ_MAX)) and int(text) <= _SEQ_MAX):
        raise ValueError("a sequence is a whole number")
    return int(text)


def _text(query: Mapping[str, str], name: str) -> str:
    text = query.get(name, "")
    if len(text) > _TEXT_MAX or "\0" in text:
        raise ValueError(f"{name}: at most {_TEXT_MAX} characters")
    return text
