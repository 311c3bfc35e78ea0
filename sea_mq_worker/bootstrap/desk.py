"""The page's desk: what operators' commands do, on connections of their own, one at a time and bounded."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import Any
from uuid import UUID

from sea_mq_worker.adapters.http.admin.desk import DeskBusyError, DeskTimeoutError
from sea_mq_worker.adapters.nats.dead_letters import DeadLetterEntry, LetterFilter
from sea_mq_worker.adapters.postgres.overview import BY_INDEX, PostgresOverview
from sea_mq_worker.adapters.postgres.records import OutboxFilter
from sea_mq_worker.bootstrap.connections import open_pool
from sea_mq_worker.bootstrap.lookout import NoIdError, lookout
from sea_mq_worker.bootstrap.operator import dead_letters, duplicate_window_seconds, operations
from sea_mq_worker.bootstrap.redrive import redriver
from sea_mq_worker.bootstrap.whereabouts import whereabouts
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.settings import Settings

_QUESTION_SECONDS = 8.0
_TURN_SECONDS = 4.0
"""How long one waits for the question before it to be answered."""
_HANDLING_SPARE_SECONDS = 20.0
_PAGE = 50
_LETTERS_READ_MAX = 2000
"""Dead letters that are looked at for one page of a filtered list."""
_ACTIONS = 20
_SHOWN_BYTES_MAX = 64 * 1024
_GRANT = (
    "the worker's own role may not do this: do it by the command, as an operator, or grant the operator's "
    "role to the worker's login, as sql/roles.sql shows"
)
_PERMIT = (
    "the worker's own NATS user may not do this: do it by the command, as sea_operator, or permit it "
    "(deploy/nats-permissions.conf)"
)


class WorkerDesk:
    """Answers the page; see the port for what each method tells."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.model_copy(
            update={
                "database_pool_max": 1,
                "database_timeout_seconds": min(settings.database_timeout_seconds, _QUESTION_SECONDS),
            }
        )
        self._turn = asyncio.Lock()

    async def whereabouts(self, text: str) -> Mapping[str, Any]:
        """Look in tables and streams."""
        async with self._question(), lookout(self._settings) as place:
            try:
                found = await whereabouts(text, place)
            except NoIdError as error:
                raise ValueError(str(error)) from error
        return {name: value for name, value in asdict(found).items() if name != "found"} | {
            "event": found.found.event if found.found else None,
            "message": found.found.message if found.found else None,
            "letters": found.found.letters if found.found else (),
        }

    async def dead_events(self, *, event_type: str, error: str, below: int | None) -> Mapping[str, Any]:
        """Ask for one more than a page, to tell whether there are more."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._question())
            pool = await open_pool(self._settings, purpose="page", hints=BY_INDEX)
            stack.push_async_callback(pool.close)
            found = await PostgresOverview(pool=pool).dead_events(
                event_type=event_type or None, error=error or None, below=below, limit=_PAGE + 1
            )
        return {"items": found[:_PAGE], "more": len(found) > _PAGE}

    async def event(self, id_: UUID) -> Mapping[str, Any] | None:
        """Show an endless payload up to a bound."""
        async with self._question(), operations(self._settings) as tables:
            found = await tables.show_outbox(id_)
        return asdict(found) | _shown(found.payload.encode()) if found else None

    async def dead_letters(self, *, reason: str, after: int) -> Mapping[str, Any]:
        """Ask for one more than a page, to tell whether there are more."""
        which = LetterFilter(reason=reason, after_seq=after)
        async with self._question(), dead_letters(self._settings) as letters:
            found = await letters.list(which, limit=_PAGE + 1, read_max=_LETTERS_READ_MAX)
        return {"items": [_summary(entry) for entry in found[:_PAGE]], "more": len(found) > _PAGE}

    async def dead_letter(self, seq: int) -> Mapping[str, Any]:
        """Show the original's headers and body."""
        async with self._question(), dead_letters(self._settings) as letters:
            found = await letters.show(seq)
        return _summary(found) | {"headers": dict(found.headers)} | _shown(found.payload)

    async def actions(self) -> Mapping[str, Any]:
        """Read the audit."""
        async with self._question(), operations(self._settings) as tables:
            return {"items": await tables.audit(limit=_ACTIONS)}

    async def replay(self, id_: UUID, *, actor: str, reason: str) -> Mapping[str, Any]:
        """Replay one event, as `outbox replay` does."""
        async with self._question():
            window = await duplicate_window_seconds(self._settings)
            async with operations(self._settings) as tables:
                with _naming_grants():
                    result = await tables.replay(
                        OutboxFilter(ids=(id_,)),
                        actor=_on_page(actor),
                        reason=reason,
                        cap=1,
                        dry_run=False,
                        duplicate_window_seconds=window,
                    )
        done = bool(result.replayed)
        text = (
            "it is PENDING again, and published when it is due"
            if done
            else "it is neither PUBLISHED nor DEAD"
        )
        return {"done": done, "text": text}

    async def redrive(self, seq: int, *, actor: str, reason: str) -> Mapping[str, Any]:
        """Redrive one dead letter, as `dlq redrive` does; the handler is given its usual time."""
        seconds = self._settings.handler_timeout_seconds + _HANDLING_SPARE_SECONDS
        async with self._question(seconds), redriver(self._settings) as again:
            with _naming_grants():
                return asdict(await again.redrive(seq, actor=_on_page(actor), reason=reason))

    @asynccontextmanager
    async def _question(self, seconds: float = _QUESTION_SECONDS) -> AsyncIterator[None]:
        """Take one's turn, and bound what is done in it."""
        try:
            await asyncio.wait_for(self._turn.acquire(), _TURN_SECONDS)
        except TimeoutError:
            raise DeskBusyError from None
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise DeskTimeoutError(
                f"no answer within {seconds:g} s: see what the page says of the servers"
            ) from None
        finally:
            self._turn.release()


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
