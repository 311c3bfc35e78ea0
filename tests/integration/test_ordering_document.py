"""The worked example of docs/explanation/ordering.md is what the database does."""

import re
from datetime import UTC, datetime, timedelta

from sea_mq_worker.ports import OutboxRepository
from tests.support.documents import ROOT
from tests.support.outboxes import PostgresWorld, published
from tests.support.rows import add_event, opened
from tests.support.servers import Database

BATCH = 4


def example() -> tuple[list[list[str]], list[list[int]]]:
    """Read the events, and the events of each claim, from the document's tables."""
    text = (ROOT / "docs" / "explanation" / "ordering.md").read_text()
    events = re.findall(r"^\| (\d+) \| ([A-D]) \| (.+) \|$", text, re.MULTILINE)
    claims = re.findall(r"^\| \d+ \| .*\| ([\d, ]+) \|$", text, re.MULTILINE)
    return [list(row) for row in events], [[int(seq) for seq in row.split(",")] for row in claims]


async def claimed_and_stored(worker: OutboxRepository) -> list[int]:
    claim = await worker.find_unpublished(batch_max=BATCH)
    await worker.mark_published_batch(claim, published(claim))
    return [event.seq for event in claim.events]


async def test_claims_take_the_runs_that_the_document_shows(database: Database) -> None:
    events, expected = example()
    assert len(events) == 9
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    async with opened(database) as pool:
        for seq, key, state in events:
            due = long_ago + timedelta(hours=2 * (state == "due in an hour"), seconds=int(seq))
            claimed = "CLAIMED" if "claimed" in state else "PENDING"
            error = "no answer" if "failed" in state else None
            await add_event(pool, claimed, error=error, ordering_key=key, available_at=due)
        worker = PostgresWorld(pool).relay(ordered=True)
        assert await claimed_and_stored(worker) == expected[0]
        await pool.execute(
            "UPDATE outbox_events SET state = 'PUBLISHED', published_at = now(), claimed_at = NULL,"
            " claimed_by = NULL, stream = 'S', stream_seq = 7 WHERE seq = 7"
        )
        assert await claimed_and_stored(worker) == expected[1]
