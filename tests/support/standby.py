"""A PostgreSQL server that follows another one, and may be promoted."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sea_mq_worker.dev.servers import EmbeddedPostgres
from tests.support.servers import QUICK


@asynccontextmanager
async def standby_of(
    primary: EmbeddedPostgres, folder: Path, *, through: str = ""
) -> AsyncIterator[EmbeddedPostgres]:
    """Run a streaming replica called ``standby``; the primary is restarted for it.

    ``through`` is a URL that leads to the primary by another way.
    """
    await primary.stop()
    _copy_data(primary.folder, folder)
    conninfo = f"{through or primary.dsn}?application_name=standby"
    standby = EmbeddedPostgres(folder, settings=QUICK | {"primary_conninfo": conninfo})
    await primary.start()
    async with standby:
        yield standby


def either_of(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> str:
    """Return the URL of a database on whichever server is the primary."""
    return primary.dsn.replace(f":{primary.port}", f":{primary.port},127.0.0.1:{standby.port}")


def _copy_data(source: Path, target: Path) -> None:
    target.mkdir()
    for part in ("data", "password"):
        subprocess.run(["cp", "-a", source / part, target], check=True)
    (target / "data" / "standby.signal").touch()
