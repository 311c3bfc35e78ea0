"""``python -m tests.releases NAME``: dump this tree's schema with rows in every state."""

import argparse
import asyncio
import re
import subprocess
import tempfile
from pathlib import Path

import asyncpg

from sea_mq_worker.dev.servers import EmbeddedPostgres
from sea_mq_worker.postgres.migrations import migrate
from tests.releases import FOLDER

# psql's own commands, and a setting that servers before 17 do not know
_NEWER = re.compile(r"^(\\(un)?restrict .*|SET transaction_timeout.*)\n", re.MULTILINE)
_OPTIONS = ("--no-owner", "--no-privileges", "--inserts")


async def dumped() -> str:
    """Return SQL that a connection executes as it is, on any supported server."""
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedPostgres(Path(folder)) as server:
            await migrate(server.dsn)
            connection = await asyncpg.connect(server.dsn)
            await connection.execute((FOLDER / "rows.sql").read_text())
            await connection.close()
            command = (str(server.programs / "pg_dump"), *_OPTIONS, server.dsn)
            done = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            text, _ = await done.communicate()
            assert done.returncode == 0
            return _NEWER.sub("", text.decode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.releases", description=__doc__)
    parser.add_argument("name", help="the release, without the patch: 1.0")
    name = parser.parse_args().name
    (FOLDER / f"{name}.sql").write_text(asyncio.run(dumped()))
