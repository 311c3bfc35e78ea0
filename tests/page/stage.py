"""What the page is shown on: a site with a token, and rows that no producer of ours would write."""

import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.site import Site, site
from tests.support.worker import WorkerProcess

TOKEN = "s3cret-for-tests"
HOSTILE = "<img src=x onerror=alert(1)>"
_INSERT = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
VALUES ($1, 'order', 'o-1', $2, jsonb_build_object('text', $3::text), '{"tenant": "acme"}')
"""
_CLAIM = """
UPDATE outbox_events SET state = 'CLAIMED', claimed_at = now(), claimed_by = 'w', publish_attempts = 1
 WHERE id = $1
"""
_BURY = """
UPDATE outbox_events SET state = 'DEAD', claimed_at = NULL, claimed_by = NULL, failures = 1,
       publish_error = 'INVALID_OUTBOX: event_type contains a space or control character' WHERE id = $1
"""


@asynccontextmanager
async def staged(dsn: str, nats_url: str, name: str, folder: Path) -> AsyncIterator[Site]:
    """Set up a site; the token's file is in its folder."""
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    async with site(dsn=dsn, nats_url=nats_url, name=name, folder=folder) as made:
        yield made


def url_of(worker: WorkerProcess) -> str:
    """Return where the page is."""
    found = re.search(r"http://127\.0\.0\.1:\d+/", worker.written)
    assert found, worker.written[-500:]
    return found[0]


async def add_dead_event(database: Any, *, event_type: str, text: str = HOSTILE) -> str:
    """Put an event in the table that went DEAD; return its id."""
    event_id = str(uuid.uuid4())
    async with database.transaction():
        await database.execute(_INSERT, event_id, event_type, text)
        await database.execute(_CLAIM, event_id)
        await database.execute(_BURY, event_id)
    return event_id
