"""Rows as no producer should write them."""

from typing import Any

import asyncpg

from tests.fuzz.chance import Chance
from tests.support.jetstream import stored_messages
from tests.support.site import Site

_INSERT = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at,
    correlation_id, causation_id, partition_key, ordering_key, headers, metadata, available_at)
VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, now() + $7 * interval '1 second', $8, $9, $10, $11,
    $12::text::jsonb, $13::text::jsonb, now() + $14 * interval '1 second')
"""


def random_row(chance: Chance) -> list[Any]:
    """Draw the parameters of an insert."""
    key = chance.maybe(chance.often(lambda: f"key-{chance.randrange(20)}", chance.text))
    return [
        chance.uuid(),
        chance.often(chance.word, chance.text),
        chance.often(chance.word, chance.text),
        chance.often(lambda: f"{chance.word()}.{chance.word()}", chance.text),
        chance.often(lambda: 1, lambda: chance.choice((0, -1, 2, 2**31 - 1, -(2**31)))),
        chance.json(),
        chance.often(lambda: 0.0, lambda: chance.choice((-1e9, -1.0, 1.0, 3.0, 61.0, 1e9))),
        chance.maybe(chance.uuid()),
        chance.maybe(chance.uuid()),
        chance.maybe(chance.text()),
        key,
        chance.maybe(chance.often(lambda: '{"Trace-Note": "x"}', chance.json)),
        chance.maybe(chance.often(lambda: '{"traceparent": "00-x"}', chance.json)),
        chance.often(lambda: 0.0, lambda: chance.choice((-1e6, 0.5, 1.0))),
    ]


class Rows:
    """What the table took of what was inserted; what it refused is no loss."""

    def __init__(self, site: Site, chance: Chance) -> None:
        self._site = site
        self._chance = chance
        self.taken: set[str] = set()
        self.refused = 0

    async def insert(self) -> None:
        """Commit one row, or be refused with an error."""
        row = random_row(self._chance)
        try:
            await self._site.database.execute(_INSERT, *row)
        except (asyncpg.PostgresError, asyncpg.DataError):
            self.refused += 1
        else:
            self.taken.add(row[0])

    async def audit(self) -> dict[str, int]:
        """Prove that each row is stored once and unaltered, or DEAD with a reason; count both."""
        rows = {str(row["id"]): row for row in await self._site.database.fetch("SELECT * FROM outbox_events")}
        assert self.taken == rows.keys()
        stored: dict[str, bytes] = {}
        for _, _, body, headers in await stored_messages(self._site.broker, self._site.target.stream):
            assert headers["Nats-Msg-Id"] not in stored, f"two copies of {headers['Nats-Msg-Id']}"
            stored[headers["Nats-Msg-Id"]] = body
        dead = {event_id for event_id, row in rows.items() if row["state"] == "DEAD"}
        assert stored.keys() == rows.keys() - dead
        for event_id, body in stored.items():
            assert (rows[event_id]["state"], rows[event_id]["payload"].encode()) == ("PUBLISHED", body)
        assert all(rows[event_id]["publish_error"] for event_id in dead)
        return {"published": len(stored), "dead": len(dead), "refused": self.refused}
