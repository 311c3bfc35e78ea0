"""Routes of the operator API: each maps a request to one call, and its error to a response."""

import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias
from uuid import UUID

from sea_mq_worker.admin.http import AdminResponse, Request, json_response, refusal
from sea_mq_worker.admin.operator_api import (
    ActionResult,
    DeadLetterCount,
    DeadLetterGroup,
    GroupProgress,
    ItemPage,
    LookupResult,
    OperatorApi,
    OperatorBusyError,
    OperatorTimeoutError,
    RecordDetail,
)
from sea_mq_worker.errors import ContractError, UnavailableError
from sea_mq_worker.operators.records import DeadEvent, DeadLetterSummary, OperatorAction

_Route: TypeAlias = Callable[[OperatorApi, Request, str], Awaitable[object]]

_ACTOR_MAX = 80
_REASON_MAX = 500
_TEXT_MAX = 200
_EVENT_TYPE_MAX = 1024
_SEQ_MAX = 2**63 - 1


async def dispatch(api: OperatorApi, request: Request) -> AdminResponse:
    """Answer a request below ``/api/``."""
    for method, path, route in ROUTES:
        found = _PATTERNS[path].fullmatch(request.path)
        if found is None:
            continue
        if request.method != method:
            return AdminResponse(HTTPStatus.METHOD_NOT_ALLOWED, headers=(f"allow: {method}",))
        return await _respond(route(api, request, found.group(1) if found.groups() else ""))
    return AdminResponse(HTTPStatus.NOT_FOUND)


async def _respond(call: Awaitable[object]) -> AdminResponse:
    try:
        data = await call
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


async def _lookup(api: OperatorApi, request: Request, _: str) -> LookupResult:
    return await api.lookup(_text(request.query, "id"))


async def _dead_events(api: OperatorApi, request: Request, _: str) -> ItemPage[DeadEvent]:
    below = request.query.get("below")
    return await api.dead_events(
        event_type=_text(request.query, "type"),
        error=_text(request.query, "error"),
        below=None if below is None else _number(below),
    )


async def _event(api: OperatorApi, _: Request, id_: str) -> RecordDetail | None:
    return await api.event(_uuid(id_))


async def _dead_letters(api: OperatorApi, request: Request, _: str) -> ItemPage[DeadLetterSummary]:
    after = _number(request.query.get("after", "0"))
    return await api.dead_letters(reason=_text(request.query, "reason"), after=after)


async def _dead_letter_groups(api: OperatorApi, _request: Request, _: str) -> ItemPage[DeadLetterCount]:
    return await api.dead_letter_groups()


async def _redrive_group(api: OperatorApi, request: Request, _: str) -> GroupProgress:
    return await api.redrive_group(_group(request), **_actor_and_reason(request))


async def _purge_group(api: OperatorApi, request: Request, _: str) -> GroupProgress:
    return await api.purge_group(_group(request), **_actor_and_reason(request))


async def _dead_letter(api: OperatorApi, _: Request, seq: str) -> RecordDetail:
    return await api.dead_letter(_number(seq))


async def _actions(api: OperatorApi, _request: Request, _: str) -> ItemPage[OperatorAction]:
    return await api.actions()


async def _resume(api: OperatorApi, request: Request, _: str) -> ActionResult:
    return await api.resume(_event_type(request), **_actor_and_reason(request))


async def _replay(api: OperatorApi, request: Request, id_: str) -> ActionResult:
    return await api.replay(_uuid(id_), **_actor_and_reason(request))


async def _redrive(api: OperatorApi, request: Request, seq: str) -> ActionResult:
    return await api.redrive(_number(seq), **_actor_and_reason(request))


ROUTES: tuple[tuple[str, str, _Route], ...] = (
    ("GET", "/api/lookup", _lookup),
    ("GET", "/api/events", _dead_events),
    ("GET", "/api/events/{id}", _event),
    ("POST", "/api/events/{id}/replay", _replay),
    ("GET", "/api/dead-letters", _dead_letters),
    ("GET", "/api/dead-letter-groups", _dead_letter_groups),
    ("POST", "/api/dead-letter-groups/redrive", _redrive_group),
    ("POST", "/api/dead-letter-groups/purge", _purge_group),
    ("GET", "/api/dead-letters/{seq}", _dead_letter),
    ("POST", "/api/dead-letters/{seq}/redrive", _redrive),
    ("POST", "/api/slow-types/resume", _resume),
    ("GET", "/api/actions", _actions),
)
"""By method and path; docs/reference/admin.schema.json is generated from what each returns."""

_PATTERNS = {path: re.compile(re.sub(r"\{\w+\}", "([^/]+)", path)) for _, path, _ in ROUTES}


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
