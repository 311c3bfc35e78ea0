"""Asks a stream's leader again and again how far the stream goes, over one connection."""

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
"""Spark asks a hundred times a second while there is nothing new."""


class OffsetWatcher:
    """A connection with a thread of its own, so that it lives on between two questions."""

    def __init__(self, settings: Settings, stream: str) -> None:
        self._settings = settings
        self._stream = stream
        self._connection: NatsConnection | None = None
        self._asked = float("-inf")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"watch {stream}", daemon=True)
        self._thread.start()

    def state(self) -> StreamInfo:
        """Ask once, waiting as long as a minute for servers that are away.

        Raises:
            UnavailableError: they did not come back.
            ContractError: the stream is missing, or the server refuses the connection or the question.
        """
        return asyncio.run_coroutine_threadsafe(self._state(), self._loop).result()

    def close(self) -> None:
        """Close the connection and end the thread; nothing can be asked any more."""
        asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _state(self) -> StreamInfo:
        await asyncio.sleep(self._asked + _PACE_SECONDS - time.monotonic())
        patience = IdleTimeout()
        while True:
            try:
                state = await stream_info(await self._connected(), self._stream)
            except UnavailableError as error:
                await self._disconnect()
                await patience.pause(error)
            else:
                self._asked = time.monotonic()
                return state

    async def _connected(self) -> NatsConnection:
        if self._connection is None:
            self._connection = await open_connection(self._settings)
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            await connection.close()
