"""Query a stream's end repeatedly over one connection."""

import asyncio
import threading
import time

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.server_info import StreamInfo, stream_info
from sea_mq_worker.domain.errors import UnavailableError
from sea_mq_worker.pipeline.sources.jetstream.idle_timeout import IdleTimeout
from sea_mq_worker.pipeline.sources.jetstream.state import open_connection
from sea_mq_worker.settings import Settings

_PACE_SECONDS = 0.1
"""Minimum time between two queries: Spark asks a hundred times a second while nothing is new."""


class OffsetWatcher:
    """A connection with its own thread, which keeps it alive between queries."""

    def __init__(self, settings: Settings, stream: str) -> None:
        self._settings = settings
        self._stream = stream
        self._connection: NatsConnection | None = None
        self._queried_at = float("-inf")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"watch {stream}", daemon=True)
        self._thread.start()

    def state(self) -> StreamInfo:
        """Query the leader once; wait up to a minute for unavailable servers.

        Raises:
            UnavailableError: the servers stayed unavailable.
            ContractError: the stream is missing, or the server refuses the connection or the request.
        """
        return asyncio.run_coroutine_threadsafe(self._state(), self._loop).result()

    def close(self) -> None:
        """Close the connection and end the thread."""
        asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _state(self) -> StreamInfo:
        await asyncio.sleep(self._queried_at + _PACE_SECONDS - time.monotonic())
        idle = IdleTimeout()
        while True:
            try:
                state = await stream_info(await self._connected(), self._stream)
            except UnavailableError as error:
                await self._disconnect()
                await idle.pause(error)
            else:
                self._queried_at = time.monotonic()
                return state

    async def _connected(self) -> NatsConnection:
        if self._connection is None:
            self._connection = await open_connection(self._settings)
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            await connection.close()
