"""The page's desk: what operators' commands do, on connections of their own, one at a time and bounded."""

import base64
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from typing import Any, TypeVar
from uuid import UUID

from sea_mq_worker.adapters.nats.manage.dead_letters import DeadLetterEntry, LetterFilter
from sea_mq_worker.adapters.postgres.operator.overview import BY_INDEX, PostgresOverview
from sea_mq_worker.admin.operator_api import DeadLetterGroup
from sea_mq_worker.bootstrap.worker.dead_letter_groups import (
    READ_MAX,
    letter_groups,
    purge_some,
    redrive_some,
)
from sea_mq_worker.bootstrap.worker.serialized import SerializedCalls
from sea_mq_worker.connections.postgres import open_pool
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.read_models import OutboxFilter
from sea_mq_worker.operations.broker import dead_letters
from sea_mq_worker.operations.database import operations
from sea_mq_worker.operations.lookup import NoIdError, message_lookup
from sea_mq_worker.operations.lookup_report import lookup_report
from sea_mq_worker.operations.redrive import redriver
from sea_mq_worker.settings import Settings

_QUESTION_SECONDS = 8.0
_HANDLING_SPARE_SECONDS = 20.0
_PAGE = 50
_ACTIONS = 20
_SHOWN_BYTES_MAX = 64 * 1024
_GRANT = (
    "the worker's own role may not do this: do it by the command, as an operator, or grant the operator's "
    "role to the worker's login, as sql/roles.sql shows"
)
_PERMIT = (
    "the worker's own NATS user may not do this: do it by the command, as sea_operator, or permit it "
    "(deploy/nats-accounts.conf)"
)

_T = TypeVar("_T")


class WorkerOperatorApi:
    """Answers the page; the port tells what each method is for."""

    def __init__(self, settings: Settings) -> None:
        seconds = min(settings.database_timeout_seconds, _QUESTION_SECONDS)
        few = {"database_pool_max": 1, "database_timeout_seconds": seconds}
        self._settings = settings.model_copy(update=few)
        self._turn = SerializedCalls()

    async def whereabouts(self, text: str) -> Mapping[str, Any]:
        return await self._ask(self._whereabouts(text))

    async def dead_events(self, *, event_type: str, error: str, below: int | None) -> Mapping[str, Any]:
        return await self._ask(self._dead_events(event_type or None, error or None, below))

    async def event(self, id_: UUID) -> Mapping[str, Any] | None:
        return await self._ask(self._event(id_))

    async def dead_letters(self, *, reason: str, after: int) -> Mapping[str, Any]:
        return await self._ask(self._dead_letters(LetterFilter(reason=reason, after_seq=after)))

    async def letter_groups(self) -> Mapping[str, Any]:
        return await self._ask(letter_groups(self._settings))

    async def dead_letter(self, seq: int) -> Mapping[str, Any]:
        return await self._ask(self._dead_letter(seq))

    async def actions(self) -> Mapping[str, Any]:
        return await self._ask(self._actions())

    async def replay(self, id_: UUID, *, actor: str, reason: str) -> Mapping[str, Any]:
        return await self._ask(self._replay(id_, _on_page(actor), reason))

    async def redrive(self, seq: int, *, actor: str, reason: str) -> Mapping[str, Any]:
        """Give the handler its usual time."""
        seconds = self._settings.handler_timeout_seconds + _HANDLING_SPARE_SECONDS
        return await self._ask(self._redrive(seq, _on_page(actor), reason), seconds)

    async def redrive_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> Mapping[str, Any]:
        seconds = self._settings.handler_timeout_seconds + _HANDLING_SPARE_SECONDS
        some = redrive_some(self._settings, group, actor=_on_page(actor), reason=reason)
        return await self._ask(some, seconds)

    async def purge_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> Mapping[str, Any]:
        return await self._ask(purge_some(self._settings, group, actor=_on_page(actor), reason=reason))

    async def resume(self, event_type: str, *, actor: str, reason: str) -> Mapping[str, Any]:
        return await self._ask(self._resume(event_type, _on_page(actor), reason))

    async def _ask(self, question: Coroutine[Any, Any, _T], seconds: float | None = None) -> _T:
        with _naming_grants():
            return await self._turn.take(question, seconds=seconds or _QUESTION_SECONDS)

    async def _whereabouts(self, text: str) -> Mapping[str, Any]:
        async with message_lookup(self._settings) as place:
            try:
                told = await lookup_report(text, place)
            except NoIdError as error:
                raise ValueError(str(error)) from error
        found = told.found
        return {name: value for name, value in asdict(told).items() if name != "found"} | {
            "event": found.event if found else None,
            "letters": found.letters if found else (),
        }

    async def _dead_events(
        self, event_type: str | None, error: str | None, below: int | None
    ) -> Mapping[str, Any]:
        async with AsyncExitStack() as stack:
            pool = await open_pool(self._settings, purpose="page", hints=BY_INDEX)
            stack.push_async_callback(pool.close)
            found = await PostgresOverview(pool=pool).dead_events(
                event_type=event_type, error=error, below=below, limit=_PAGE + 1
            )
        return {"items": found[:_PAGE], "more": len(found) > _PAGE}

    async def _event(self, id_: UUID) -> Mapping[str, Any] | None:
        async with operations(self._settings) as tables:
            found = await tables.show_outbox(id_)
        return asdict(found) | _shown(found.payload.encode()) if found else None

    async def _dead_letters(self, which: LetterFilter) -> Mapping[str, Any]:
        async with dead_letters(self._settings) as letters:
            found = await letters.list(which, limit=_PAGE + 1, read_max=READ_MAX)
        return {"items": [_summary(entry) for entry in found[:_PAGE]], "more": len(found) > _PAGE}

    async def _dead_letter(self, seq: int) -> Mapping[str, Any]:
        async with dead_letters(self._settings) as letters:
            found = await letters.show(seq)
        return _summary(found) | {"headers": dict(found.headers)} | _shown(found.payload)

    async def _actions(self) -> Mapping[str, Any]:
        async with operations(self._settings) as tables:
            return {"items": await tables.audit(limit=_ACTIONS)}

    async def _replay(self, id_: UUID, actor: str, reason: str) -> Mapping[str, Any]:
        async with operations(self._settings) as tables:
            result = await tables.replay(
                OutboxFilter(ids=(id_,)),
                actor=actor,
                reason=reason,
                cap=1,
                dry_run=False,
            )
        if result.replayed:
            return {"done": True, "text": "it is PENDING again, and published when it is due"}
        return {"done": False, "text": "it is neither PUBLISHED nor DEAD"}

    async def _resume(self, event_type: str, actor: str, reason: str) -> Mapping[str, Any]:
        async with operations(self._settings) as tables:
            await tables.resume(event_type, actor=actor, reason=reason)
        text = f"{event_type or 'every slow event type'} goes on at full speed within seconds"
        return {"done": True, "text": text}

    async def _redrive(self, seq: int, actor: str, reason: str) -> Mapping[str, Any]:
        async with redriver(self._settings) as again:
            return asdict(await again.redrive(seq, actor=actor, reason=reason))


@contextmanager
def _naming_grants() -> Iterator[None]:
    """Say which right is missing: a worker's own roles have the least.

    Raises:
        ContractError: something was not permitted, or is not as it must be.
    """
    try:
        yield
    except ContractError as error:
        text = str(error)
        if "SQLSTATE 42501" in text:
            raise ContractError(f"{text}; {_GRANT}") from error
        if "permission" in text:
            raise ContractError(f"{text}; {_PERMIT}") from error
        raise


def _on_page(actor: str) -> str:
    return f"{actor} (page)"


def _summary(entry: DeadLetterEntry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if name not in {"headers", "payload"}}


def _shown(payload: bytes) -> dict[str, Any]:
    """Return a body as text, or in base64 where it is none, up to a bound."""
    cut = payload[:_SHOWN_BYTES_MAX]
    try:
        text = cut.decode(errors="strict" if cut == payload else "ignore")
        shown = {"payload": text, "payload_encoding": "utf-8"}
    except UnicodeDecodeError:
        shown = {"payload": base64.b64encode(cut).decode(), "payload_encoding": "base64"}
    return shown | {"payload_bytes": len(payload), "payload_cut": len(cut) < len(payload)}
