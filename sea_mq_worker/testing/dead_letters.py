"""In-memory fakes of the dead letters as operators use them: their stream, and their records in the inbox."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from sea_mq_worker.domain.dead_letter_records import (
    DeadLetterEntry,
    DeadLetterFilter,
    DeadLetterSummary,
    parse_dead_letter,
)
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.domain.read_models import ActionOutcome, OperatorAction, Redrive, check_accountable
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.inbox import InboxTable
from sea_mq_worker.testing.stream import InMemoryStream

_ALL = DeadLetterFilter()


class InMemoryDeadLetters:
    """A dead-letter stream; see ``ports.operations.DeadLetterStore``.

    Args:
        stream: the dead letters.
        sources: the streams of the original messages.
    """

    def __init__(self, *, stream: InMemoryStream, sources: Sequence[InMemoryStream] = ()) -> None:
        self._stream = stream
        self._sources = {source.name: source for source in sources}

    async def list(
        self, which: DeadLetterFilter = _ALL, *, limit: int = 100, read_max: int | None = None
    ) -> Sequence[DeadLetterSummary]:
        """List dead letters, oldest first."""
        return [entry.summary() async for entry in self.walk(which, limit=limit, read_max=read_max)]

    async def walk(
        self, which: DeadLetterFilter = _ALL, *, limit: int | None = None, read_max: int | None = None
    ) -> AsyncIterator[DeadLetterEntry]:
        """Yield dead letters one by one."""
        found = read = 0
        for stored in self._stream.entries(after_seq=which.after_seq):
            entry = await self.show(stored.seq)
            if which.since and entry.stored_at < which.since:
                continue
            if which.until and entry.stored_at >= which.until:
                return
            read += 1
            if which.matches(entry):
                yield entry
                found += 1
            if found == limit or read == read_max:
                return

    async def show(self, seq: int) -> DeadLetterEntry:
        """Return one dead letter."""
        return parse_dead_letter(_message(self._stream, seq))

    async def source(self, entry: DeadLetterEntry) -> InboundMessage:
        """Return the original message."""
        if entry.stream not in self._sources:
            raise ContractError(f"there is no stream {entry.stream}")
        found = _message(self._sources[entry.stream], entry.stream_sequence)
        return found._replace(consumer=entry.consumer, deliveries=entry.attempts)

    async def remove(self, seq: int) -> None:
        """Delete one dead letter."""
        self._stream.remove((await self.show(seq)).seq)


class InMemoryDeadLetterRecords:
    """An ``InboxTable`` and the audit; see ``ports.operations.DeadLetterRecords``.

    Attributes:
        actions: the audit, earliest first.
    """

    def __init__(self, *, table: InboxTable) -> None:
        self.actions: list[OperatorAction] = []
        self._table = table

    async def redriven(self, message_id: UUID, *, actor: str, reason: str) -> Redrive:
        """Open a dead-lettered message, and begin a record."""
        action = self._begin("redrive", {"message_id": message_id}, actor, reason)
        row = self._table.rows.get(str(message_id))
        if row is None or not row.settled:
            return Redrive(open=True, reopened=False, action=action)
        if row.processed_at is not None:
            return Redrive(open=False, reopened=False, action=action)
        row.dead_lettered_at = row.dead_letter_reason = None
        row.attempts = 0
        return Redrive(open=True, reopened=True, action=action)

    async def begin_purge(self, selection: Mapping[str, Any], *, actor: str, reason: str) -> int:
        """Begin the record of a purge."""
        return self._begin("purge", selection, actor, reason)

    async def record_purge(self, message_id: UUID | None, *, action: int, actor: str, reason: str) -> bool:
        """Record that a message is given up, unless it is open."""
        row = self._table.rows.get(str(message_id))
        if row is not None and not row.settled:
            return False
        if row is not None and row.dead_lettered_at is not None:
            row.dead_letter_reason = "CLOSED"
            row.last_error = "; ".join(filter(None, (f"purged by {actor}: {reason}", row.last_error)))
        self._change(action, affected=self.actions[action - 1].affected + 1)
        return True

    async def finish(self, action: int, outcome: ActionOutcome) -> None:
        """Record the outcome of a redrive or purge."""
        record = self.actions[action - 1]
        redriven = record.action == "redrive" and outcome == "done"
        self._change(action, outcome=outcome, affected=record.affected + redriven)

    def _begin(self, action: str, selection: Mapping[str, Any], actor: str, reason: str) -> int:
        check_accountable(actor, reason)
        record = OperatorAction(
            id=len(self.actions) + 1,
            at=EPOCH + timedelta(seconds=self._table.clock()),
            actor=actor,
            action=action,
            reason=reason,
            selection=str(selection),
            affected=0,
            outcome="open",
        )
        self.actions.append(record)
        return record.id

    def _change(self, action: int, **changes: Any) -> None:
        self.actions[action - 1] = replace(self.actions[action - 1], **changes)


def _message(stream: InMemoryStream, seq: int) -> InboundMessage:
    message = stream.message(seq)
    if message is None:
        raise ContractError(f"stream {stream.name} has no message {seq} (any more)")
    return message
