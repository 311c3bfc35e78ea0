"""Servers whose clock differs from this machine's."""

import re
from asyncio import StreamReader, StreamWriter
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta

from tests.support.proxy import TcpProxy, proxied

AHEAD = timedelta(minutes=2)

_POSTGRES_AHEAD = """
CREATE OR REPLACE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql
    AS $$ SELECT pg_catalog.timeofday()::timestamptz + interval '2 min' $$
"""
_POSTGRES_RIGHT = """
CREATE OR REPLACE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE internal
    AS 'clock_timestamp'
"""


def postgres_clock(*, right: bool) -> str:
    """Return the statement that shifts a database's clock, or sets it right again."""
    return _POSTGRES_RIGHT if right else _POSTGRES_AHEAD


def nats_clock(url: str) -> AbstractAsyncContextManager[tuple[TcpProxy, str]]:
    """Put a proxy before nats-server that gives its answers another time."""
    return proxied(url, kind=_NatsAhead)


class _NatsAhead(TcpProxy):
    """Moves the time on that an answer bears; the message stays as long as it is."""

    _TOLD = re.compile(rb'(?<="ts":")\d{4}-\d\d-\d\dT\d\d:\d\d')
    _MINUTE = "%Y-%m-%dT%H:%M"

    async def _pump(self, reader: StreamReader, writer: StreamWriter, *, up: bool) -> None:
        if up:
            await super()._pump(reader, writer, up=up)
        while line := await reader.readline():
            writer.write(self._TOLD.sub(self._later, line))
            await writer.drain()
        raise ConnectionResetError

    def _later(self, reported: re.Match[bytes]) -> bytes:
        moment = datetime.strptime(reported[0].decode(), self._MINUTE) + AHEAD  # noqa: DTZ007 - no zone is in it
        return moment.strftime(self._MINUTE).encode()
