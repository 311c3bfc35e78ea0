"""Purge: delete dead letters for good, and give up their messages."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sea_mq_worker.domain.errors import ContractError, WorkerError
from sea_mq_worker.operations.broker import dead_letters
from sea_mq_worker.operations.database import operations
from sea_mq_worker.operations.dead_letters import DeadLetterOutcome
from sea_mq_worker.ports.operations import DeadLetterRecords, DeadLetterStore
from sea_mq_worker.settings import Settings

if TYPE_CHECKING:
    from sea_mq_worker.domain.read_models import ActionOutcome


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
