"""Purge: dead letters deleted for good, and their messages given up."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sea_mq_worker.adapters.nats.manage.dead_letters import NatsDeadLetters
from sea_mq_worker.adapters.postgres.operator.operations import PostgresOperations
from sea_mq_worker.domain.errors import ContractError, WorkerError
from sea_mq_worker.operations.broker import dead_letters
from sea_mq_worker.operations.database import operations
from sea_mq_worker.operations.dead_letters import DeadLetterOutcome
from sea_mq_worker.settings import Settings

if TYPE_CHECKING:
    from sea_mq_worker.domain.read_models import ActionOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Purger:
    """Deletes dead letters, each after the inbox has noted it: cut short, it can be done again."""

    tables: PostgresOperations
    letters: NatsDeadLetters
    actor: str
    reason: str

    @asynccontextmanager
    async def recorded(
        self, selection: Mapping[str, Any]
    ) -> AsyncIterator[Callable[[int], Awaitable[DeadLetterOutcome]]]:
        """Keep one record of all that is deleted in a block; yield what deletes one dead letter."""
        action = await self.tables.begin_purge(selection, actor=self.actor, reason=self.reason)
        outcome: ActionOutcome = "refused"

        async def purge(seq: int) -> DeadLetterOutcome:
            nonlocal outcome
            before, outcome = outcome, "failed"
            told = await self._purge(seq, action=action)
            outcome = "done" if told.done else before
            return told

        try:
            yield purge
        finally:
            with suppress(WorkerError):
                await self.tables.finish(action, outcome)

    async def _purge(self, seq: int, *, action: int) -> DeadLetterOutcome:
        """Delete one dead letter; where its message is being handled again, both stay."""
        try:
            entry = await self.letters.show(seq)
            may_go = await self.tables.letter_purged(
                _uuid(entry.message_id), action=action, actor=self.actor, reason=self.reason
            )
            if not may_go:
                text = "its message is open again, as during a redrive; see `inbox show`"
                return DeadLetterOutcome(seq=seq, message_id=entry.message_id, done=False, text=text)
            await self.letters.remove(seq)
        except ContractError as error:
            return DeadLetterOutcome(seq=seq, message_id="", done=False, text=str(error))
        return DeadLetterOutcome(seq=seq, message_id=entry.message_id, done=True, text="deleted")


@asynccontextmanager
async def purger(settings: Settings, *, actor: str, reason: str) -> AsyncIterator[Purger]:
    """Connect all that a purge needs."""
    async with AsyncExitStack() as stack:
        yield Purger(
            tables=await stack.enter_async_context(operations(settings)),
            letters=await stack.enter_async_context(dead_letters(settings)),
            actor=actor,
            reason=reason,
        )


def _uuid(text: str) -> UUID | None:
    """Somebody else may have put into the stream what is no dead letter."""
    try:
        return UUID(text)
    except ValueError:
        return None
