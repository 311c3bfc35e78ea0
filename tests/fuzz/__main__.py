"""``python -m tests.fuzz --seconds 300``: a long campaign on servers of its own."""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

import asyncpg

from sea_mq_worker.adapters.postgres.schema.migrations import migrate
from sea_mq_worker.embedded import EmbeddedNats, EmbeddedPostgres
from tests.fuzz.campaign import Servers, run
from tests.support.servers import QUICK


async def main() -> None:
    """Run and print the outcome as JSON."""
    parser = argparse.ArgumentParser(description="Random settings files, rows and messages.")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rate", type=float, default=10.0, help="of each kind, a second")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sea-mq-fuzz-") as name:
        folder = Path(name)
        async with (
            EmbeddedPostgres(folder / "postgres", settings=QUICK) as postgres,
            EmbeddedNats(folder / "nats") as nats,
        ):
            connection = await asyncpg.connect(postgres.dsn)
            await connection.execute("CREATE DATABASE other")
            await connection.close()
            servers = Servers(dsn=postgres.dsn, other_dsn=postgres.dsn_for("other"), nats_url=nats.url)
            await migrate(servers.dsn)
            await migrate(servers.other_dsn)
            found = await run(
                servers, name="fuzz", folder=folder, seconds=given.seconds, rate=given.rate, seed=given.seed
            )
    print(json.dumps({"seed": given.seed, "seconds": given.seconds, **found}, indent=2))  # noqa: T201


asyncio.run(main())
