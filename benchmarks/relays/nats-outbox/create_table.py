"""Create the table of nats-outbox's model."""

import asyncio
import os

from nats_outbox.core.models import Base
from sqlalchemy.ext.asyncio import create_async_engine


async def main() -> None:
    engine = create_async_engine(os.environ["OUTBOX_DATABASE_URL"])
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()


asyncio.run(main())
