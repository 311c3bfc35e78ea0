"""PgQueuer with an entrypoint that publishes to JetStream."""

import os
from asyncio import get_running_loop
from signal import SIGTERM

import asyncpg
import nats
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

_BATCH = 500


async def main() -> None:
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    stream = client.jetstream()
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(os.environ["PGDSN"])))
    subject = os.environ["SUBJECT"]

    @queue.entrypoint("publish")
    async def publish(job: Job) -> None:
        await stream.publish(subject, job.payload or b"", headers=job.headers)

    get_running_loop().add_signal_handler(SIGTERM, queue.shutdown.set)
    await queue.run(batch_size=_BATCH, max_concurrent_tasks=2 * _BATCH)
    await client.close()


uvloop.run(main())
