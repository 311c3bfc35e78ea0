"""In-memory fake of the outbox as replays use it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.filters import OutboxFilter
from sea_mq_worker.domain.read_models import check_accountable
from sea_mq_worker.domain.replay_records import Chosen, Replay
from sea_mq_worker.testing import EPOCH
from sea_mq_worker.testing.outbox import OutboxRow, OutboxTable, matches

_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)


@dataclass(slots=True)
class InMemoryReplays:
    """An ``OutboxTable``; see ``ports.operations.ReplayTables``.

    Attributes:
        replays: the record of each replay, by its ID.
        finished: IDs of the finished ones.
    """

    table: OutboxTable
    hold_dead_keys: bool = False
    replays: dict[int, Replay] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)

    async def choose(
        self, which: OutboxFilter, *, limit: int | None, resumed: Replay | None = None
    ) -> Sequence[Chosen]:
        """Return the events to put back."""
        rows = sorted(self.table.rows.values(), key=lambda row: row.seq)
        found = [
            Chosen(UUID(row.id), row.seq, _time(row.published_at))
            for row in rows
            if row.state in _TERMINAL and matches(row, which) and (resumed is None or _is_left(row, resumed))
        ]
        return found[:limit]

    async def begin(self, which: OutboxFilter, *, actor: str, reason: str) -> Replay:
        """Begin the record of a replay."""
        check_accountable(actor, reason)
        action = len(self.replays) + 1
        at = EPOCH + timedelta(seconds=self.table.clock())
        self.replays[action] = Replay(id=action, which=which, at=at)
        return self.replays[action]

    async def load(self, action: int) -> Replay:
        """Return an interrupted replay."""
        if action not in self.replays:
            raise WorkerError(f"action {action} is no replay")
        replay = self.replays[action]
        if action in self.finished:
            raise WorkerError(f"replay {action} is finished: it put back {replay.replayed}")
        return replay

    async def put_back(self, replay: Replay, portion: Sequence[Chosen]) -> Replay:
        """Put events back."""
        if self.replays[replay.id].through != replay.through:
            raise WorkerError(f"another run continues replay {replay.id}; let it, or stop it first")
        ids = [str(one.id) for one in portion if self.table.rows[str(one.id)].state in _TERMINAL]
        for event_id in ids:
            self.table.replay(event_id)
        changed = replace(replay, through=portion[-1].seq, replayed=replay.replayed + len(ids))
        self.replays[replay.id] = changed
        return changed

    async def not_taken(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        """Return the events that are still to be claimed."""
        rows = [self.table.rows[str(event_id)] for event_id in ids]
        return [UUID(row.id) for row in rows if self._is_waiting(row)]

    async def finish(self, replay: Replay) -> None:
        """Close the record."""
        self.finished.add(replay.id)

    def _is_waiting(self, row: OutboxRow) -> bool:
        is_held_back = row.ordering_key is not None and any(
            other.ordering_key == row.ordering_key and other.seq < row.seq and self._holds_back(other)
            for other in self.table.rows.values()
        )
        return row.state is EventState.PENDING and not row.attempts and not is_held_back

    def _holds_back(self, row: OutboxRow) -> bool:
        if row.state is EventState.DEAD:
            return self.hold_dead_keys
        return row.state is not EventState.PUBLISHED and row.error is not None


def _is_left(row: OutboxRow, replay: Replay) -> bool:
    published_at = None if row.published_at is None else EPOCH + timedelta(seconds=row.published_at)
    is_own_work = published_at is not None and replay.at is not None and published_at >= replay.at
    return row.seq > replay.through and not is_own_work
