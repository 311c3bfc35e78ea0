"""Commit events, and record which were committed or rolled back, and in which order."""

import asyncio
import json
import random
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.description import Table
from tests.support.servers import database_connection

SUBJECT = "kit.event.made.v1"
SUBJECTS = "kit.event.>"
TYPE = "made"
_PLACE = re.compile(r"(?<!:):(id|type|key|subject|body)\b")
_KEYS = 6
_LATE_SECONDS = 0.7
# Values that a careless relay alters: digits that a double cannot hold, characters outside the basic
# multilingual plane, separators that some writers escape, empty and nested values.
_TRICKY: tuple[dict[str, Any], ...] = (
    {"amount": 12345678901234567890},
    {"rate": "PLACE"},
    {"text": '\u00e4\u2028\u2029 \U0001f600 \\ " </script>'},
    {"nothing": None, "empty": {}, "list": [[], "", 0, False]},
    {"filler": "x" * 2000},
)
_EXACT = "0.12345678901234567890123"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An inserted event; ``fault`` names the fault at that time."""

    id: str
    key: str | None
    body: str
    fault: str
    committed: bool
    poison: bool = False


@dataclass(slots=True)
class Ledger:
    """Writes to the relay's table, not through the proxies.

    Args:
        dsn: address of the database.
        table: the statement that inserts.
        chance: source of all random choices.
    """

    dsn: str
    table: Table
    chance: random.Random
    fault: str = ""
    events: list[Event] = field(default_factory=list)

    async def burst(self, count: int) -> None:
        """Commit ``count`` events in small transactions, and some more that are late or rolled back.

        A key has one transaction at a time, so that its order is certain. A late transaction inserts its rows
        first and commits after transactions that began later.
        """
        async with database_connection(self.dsn) as connection, asyncio.TaskGroup() as late:
            left = count
            while left > 0:
                size = min(left, self.chance.randint(1, 6))
                left -= size
                kind = self.chance.random()
                if kind < 0.1:
                    late.create_task(self._late(size))
                else:
                    await self._transaction(connection, size, commit=kind > 0.2)
                    left += size if kind <= 0.2 else 0
                await asyncio.sleep(self.chance.random() * 0.01)

    async def poison(self, bytes_: int) -> None:
        """Commit an event that is too large to be sent."""
        async with database_connection(self.dsn) as connection:
            await self._insert(connection, key=None, committed=True, poison=bytes_)

    async def _late(self, size: int) -> None:
        async with database_connection(self.dsn) as connection, connection.transaction():
            for _ in range(size):
                await self._insert(connection, key=None, committed=True)
            await asyncio.sleep(_LATE_SECONDS)

    async def _transaction(self, connection: Any, size: int, *, commit: bool) -> None:
        transaction = connection.transaction()
        await transaction.start()
        for _ in range(size):
            key = f"key-{self.chance.randrange(_KEYS)}" if self.chance.random() < 0.6 else None
            await self._insert(connection, key=key, committed=commit)
        await (transaction.commit() if commit else transaction.rollback())

    async def _insert(self, connection: Any, *, key: str | None, committed: bool, poison: int = 0) -> None:
        event_id = str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
        content = {"event": event_id, "key": key, **self.chance.choice(_TRICKY), "more": "x" * poison}
        body = json.dumps(content, ensure_ascii=False).replace('"PLACE"', _EXACT)
        event = Event(
            id=event_id,
            key=key,
            body=body,
            fault=self.fault,
            committed=committed,
            poison=poison > 0,
        )
        self.events.append(event)
        values = {"id": event_id, "type": TYPE, "key": key, "subject": SUBJECT, "body": body}
        statement, arguments = positional(self.table.insert, values)
        await connection.execute(statement, *arguments)


def positional(statement: str, values: Mapping[str, str | None]) -> tuple[str, list[str | None]]:
    """Replace ``:name`` by ``$1`` and so on; return the values in that order."""
    used: list[str] = []

    def place(found: re.Match[str]) -> str:
        if found[1] not in used:
            used.append(found[1])
        return f"CAST(${used.index(found[1]) + 1} AS text)"

    return _PLACE.sub(place, statement), [values[name] for name in used]
