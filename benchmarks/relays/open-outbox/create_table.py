"""Create the table by the relay's own schema: create_table.py FILE."""

import asyncio
import os
import sys
from pathlib import Path

import asyncpg


async def main(schema: str) -> None:
    connection = await asyncpg.connect(os.environ["STORAGE_URL"])
    await connection.execute(schema)
    await connection.close()


asyncio.run(main(Path(sys.argv[1]).read_text()))
