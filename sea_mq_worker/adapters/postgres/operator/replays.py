"""PostgresReplays: put events back into the outbox, in portions that do not delay new events."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from sea_mq_worker.adapters.postgres.connection import fetch, fetch_with_long_timeout
from sea_mq_worker.adapters.postgres.queries import load_named
from sea_mq_worker.domain.errors import WorkerError
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.filters import OutboxFilter
from sea_mq_worker.domain.read_models import check_accountable
from sea_mq_worker.domain.replay_records import Chosen, Replay

_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
_TIMES = ("since", "until")
_PAGING = ("limit", "before_id")
_LOWEST = -(2**63)
"""Below every seq: who writes rows past the triggers may choose a negative one."""


class PostgresReplays:
    """Changes events from PUBLISHED or DEAD to PENDING, the earliest first, which keeps each key's order.

    See ``ports.operations.ReplayTables``. Each method raises what ``translated`` raises, too.
    """

    def __init__(self, *, pool: asyncpg.Pool, hold_dead_keys: bool = False) -> None:
        """Use a pool opened with ``OPERATOR_HINTS``; a DEAD event may hold back the later ones of its key."""
        self._pool = pool
        self._hold_dead_keys = hold_dead_keys
        self._sql = load_named("replay")

    async def choose(
        self, which: OutboxFilter, *, limit: int | None, resumed: Replay | None = None
    ) -> list[Chosen]:
        states = tuple(state for state in _TERMINAL if state in which.states)
        choose = self._sql["choose"].bind(
            replace(which, states=states),
            through=(resumed.through if resumed else 0) or _LOWEST,
            begun_at=resumed.at if resumed else None,
            limit=limit,
        )
        rows = await fetch_with_long_timeout(self._pool, *choose)
        return [Chosen(row["id"], row["seq"], row["published_at"]) for row in rows]

    async def begin(self, which: OutboxFilter, *, actor: str, reason: str) -> Replay:
        check_accountable(actor, reason)
        states = tuple(state for state in _TERMINAL if state in which.states)
        selection = as_json(replace(which, states=states))
        begin = self._sql["begin_replay"].bind(actor=actor, reason=reason, selection=selection)
        rows = await fetch(self._pool, *begin)
        return Replay(id=rows[0]["id"], which=which)

    async def load(self, action: int) -> Replay:
        rows = await fetch(self._pool, *self._sql["load_replay"].bind(action=action))
        if not rows:
            raise WorkerError(
                f"action {action} is no replay; `python -m sea_mq_worker audit --action replay` lists them"
            )
        selection = json.loads(rows[0]["selection"])
        progress = selection.pop("progress", {"finished": True})
        if progress["finished"]:
            raise WorkerError(f"replay {action} is finished: it put back {rows[0]['affected']}")
        if "as_given" in progress:
            raise WorkerError(f"replay {action} is the pipeline's: run the same `pipeline replay` again")
        return Replay(
            id=action,
            which=_from_json(selection),
            at=rows[0]["at"],
            through=progress["through"],
            replayed=rows[0]["affected"],
        )

    async def put_back(self, replay: Replay, portion: Sequence[Chosen]) -> Replay:
        through = max(portion[-1].seq, replay.through)
        ids = [one.id for one in portion]
        put_back = self._sql["put_back"].bind(
            ids=ids, action=replay.id, through=replay.through, last_seq=through
        )
        [row] = await fetch(self._pool, *put_back)
        if not row["is_mine"]:
            raise WorkerError(f"another run continues replay {replay.id}; let it, or stop it first")
        return replace(replay, through=through, replayed=replay.replayed + row["count"])

    async def not_taken(self, ids: Sequence[UUID]) -> list[UUID]:
        not_taken = self._sql["not_taken"].bind(ids=ids, hold_dead_keys=self._hold_dead_keys)
        return [row["id"] for row in await fetch(self._pool, *not_taken)]

    async def finish(self, replay: Replay) -> None:
        await fetch(self._pool, *self._sql["finish_replay"].bind(action=replay.id))


def as_json(which: OutboxFilter) -> str:
    given = {name: value for name, value in asdict(which).items() if value is not None}
    return json.dumps({name: value for name, value in given.items() if name not in _PAGING}, default=str)


def _from_json(selection: Mapping[str, Any]) -> OutboxFilter:
    given = dict(selection)
    for name in _TIMES:
        if name in given:
            given[name] = datetime.fromisoformat(given[name])
    if "ids" in given:
        given["ids"] = tuple(map(UUID, given["ids"]))
    if "correlation_id" in given:
        given["correlation_id"] = UUID(given["correlation_id"])
    return OutboxFilter(**given | {"states": tuple(map(EventState, given["states"]))})
