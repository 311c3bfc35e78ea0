"""A site with a token to show the page on, and rows that no producer of ours would write."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.rows import add_event
from tests.support.site import Site, site
from tests.support.worker import WorkerProcess

TOKEN = "s3cret-for-tests"
HOSTILE = "<img src=x onerror=alert(1)>"
AMOUNT = "12345678901234567890.10"
"""A number that JavaScript cannot hold."""
_ERROR = "INVALID_OUTBOX: event_type contains a space or control character"


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
    payload = f'{{"text": {json.dumps(text)}, "total": {AMOUNT}}}'
    given = {"event_type": event_type, "payload": payload, "headers": '{"tenant": "acme"}'}
    async with database.transaction():
        return str(await add_event(database, "DEAD", error=_ERROR, **given))
