"""Requests to the desk: a path and its arguments become one call, its errors an answer."""

import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias
from uuid import UUID

from sea_mq_worker.admin.operator_api import (
    Data,
    DeadLetterGroup,
    OperatorApi,
    OperatorBusyError,
    OperatorTimeoutError,
)
from sea_mq_worker.admin.requests import Request
from sea_mq_worker.admin.responses import AdminResponse, json_response, refusal
from sea_mq_worker.domain.errors import ContractError, UnavailableError

_Errand: TypeAlias = Callable[[OperatorApi, Request, str], Awaitable[Data | None]]

_ACTOR_MAX = 80
_REASON_MAX = 500
_TEXT_MAX = 200
_EVENT_TYPE_MAX = 1024
_SEQ_MAX = 2**63 - 1


async def dispatch(desk: OperatorApi, request: Request) -> AdminResponse:
    """Do what is asked for below ``/api/``."""
    for method, pattern, errand in _ROUTES:
        found = pattern.fullmatch(request.path)
        if found is None:
            continue
        if request.method != method:
            return AdminResponse(HTTPStatus.METHOD_NOT_ALLOWED, headers=(f"allow: {method}",))
        return await _answered(errand(desk, request, found.group(1) if found.groups() else ""))
    return AdminResponse(HTTPStatus.NOT_FOUND)


async def _answered(doing: Awaitable[Data | None]) -> AdminResponse:
    try:
        data = await doing
    except ValueError as error:
        return refusal(HTTPStatus.BAD_REQUEST, str(error))
    except OperatorBusyError:
        return refusal(
            HTTPStatus.TOO_MANY_REQUESTS, "somebody else asks just now: try again", "retry-after: 1"
        )
    except OperatorTimeoutError as error:
        return refusal(HTTPStatus.GATEWAY_TIMEOUT, str(error))
    except UnavailableError as error:
        return refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    except ContractError as error:
        return refusal(HTTPStatus.CONFLICT, str(error))
    return refusal(HTTPStatus.NOT_FOUND, "there is none (any more)") if data is None else json_response(data)


async def _whereabouts(desk: OperatorApi, request: Request, _: str) -> Data:
    return await desk.whereabouts(_text(request.query, "id"))


async def _dead_events(desk: OperatorApi, request: Request, _: str) -> Data:
    below = request.query.get("below")
    return await desk.dead_events(
        event_type=_text(request.query, "type"),
        error=_text(request.query, "error"),
        below=None if below is None else _number(below),
    )


async def _event(desk: OperatorApi, _: Request, id_: str) -> Data | None:
    return await desk.event(_uuid(id_))


async def _dead_letters(desk: OperatorApi, request: Request, _: str) -> Data:
    after = _number(request.query.get("after", "0"))
    return await desk.dead_letters(reason=_text(request.query, "reason"), after=after)


async def _letter_groups(desk: OperatorApi, _request: Request, _: str) -> Data:
    return await desk.letter_groups()


async def _redrive_group(desk: OperatorApi, request: Request, _: str) -> Data:
    return await desk.redrive_group(_group(request), **_who_and_why(request))


async def _purge_group(desk: OperatorApi, request: Request, _: str) -> Data:
    return await desk.purge_group(_group(request), **_who_and_why(request))


async def _dead_letter(desk: OperatorApi, _: Request, seq: str) -> Data:
    return await desk.dead_letter(_number(seq))


async def _actions(desk: OperatorApi, _request: Request, _: str) -> Data:
    return await desk.actions()


async def _resume(desk: OperatorApi, request: Request, _: str) -> Data:
    return await desk.resume(_event_type(request), **_who_and_why(request))


async def _replay(desk: OperatorApi, request: Request, id_: str) -> Data:
    return await desk.replay(_uuid(id_), **_who_and_why(request))


async def _redrive(desk: OperatorApi, request: Request, seq: str) -> Data:
    return await desk.redrive(_number(seq), **_who_and_why(request))


_ROUTES: tuple[tuple[str, re.Pattern[str], _Errand], ...] = (
    ("GET", re.compile(r"/api/where"), _whereabouts),
    ("GET", re.compile(r"/api/events"), _dead_events),
    ("GET", re.compile(r"/api/events/([^/]+)"), _event),
    ("POST", re.compile(r"/api/events/([^/]+)/replay"), _replay),
    ("GET", re.compile(r"/api/dead-letters"), _dead_letters),
    ("GET", re.compile(r"/api/letter-groups"), _letter_groups),
    ("POST", re.compile(r"/api/letter-groups/redrive"), _redrive_group),
    ("POST", re.compile(r"/api/letter-groups/purge"), _purge_group),
    ("GET", re.compile(r"/api/dead-letters/([^/]+)"), _dead_letter),
    ("POST", re.compile(r"/api/dead-letters/([^/]+)/redrive"), _redrive),
    ("POST", re.compile(r"/api/slow-types/resume"), _resume),
    ("GET", re.compile(r"/api/actions"), _actions),
)


def _who_and_why(request: Request) -> dict[str, str]:
    """Read actor and reason, which the audit needs.

    Raises:
        ValueError: one is missing or endless.
    """
    found = {}
    for name, most in (("actor", _ACTOR_MAX), ("reason", _REASON_MAX)):
        value = request.body.get(name)
        if not isinstance(value, str) or not value.strip() or len(value) > most or not value.isprintable():
            raise ValueError(f"say the {name} on one line, in at most {most} characters")
        found[name] = value.strip()
    return found


def _group(request: Request) -> DeadLetterGroup:
    """Read which dead letters.

    Raises:
        ValueError: a part of it is missing or something else.
    """
    match request.body:
        case {"dlq_reason": str(reason), "subject": str(subject), "after": int(after), "last": int(last)}:
            return DeadLetterGroup(reason=reason, subject=subject, after=after, last=last)
        case _:
            raise ValueError(
                "say the group: dlq_reason, subject, after and last, as the list of groups has them"
            )


def _event_type(request: Request) -> str:
    """Read which event type; empty: all that are slow.

    Raises:
        ValueError: it is missing, or cannot be one.
    """
    value = request.body.get("event_type")
    if not isinstance(value, str) or len(value) > _EVENT_TYPE_MAX or not value.isprintable():
        raise ValueError("say the event_type; an empty one means all that are slow")
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
