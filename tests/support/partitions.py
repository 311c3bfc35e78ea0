"""An outbox in partitions, for tests that need one."""

import asyncpg
import pytest

from sea_mq_worker.resources import resource_folder

SCRIPT = resource_folder("sql") / "partitions.sql"
VERSION_MIN = 17


async def partition_outbox(dsn: str, *, schema: str = "public") -> None:
    """Divide the outbox as an operator does; skips the test where the server cannot."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": f"{schema}, pg_temp"})
    try:
        if connection.get_server_version().major < VERSION_MIN:
            pytest.skip(f"an outbox in partitions needs PostgreSQL {VERSION_MIN}")
        async with connection.transaction():
            await connection.execute(SCRIPT.read_text())
    finally:
        await connection.close()
