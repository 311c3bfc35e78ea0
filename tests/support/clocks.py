"""Clocks that tests move: of Python processes, of the running event loop, and of servers."""

import asyncio
import re
from asyncio import StreamReader, StreamWriter
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.proxy import TcpProxy, proxied

_SITE = """
import datetime as _datetime
import time as _time

_SHIFT = {seconds}
_real_time, _real_time_ns = _time.time, _time.time_ns
_real, _shift = _datetime.datetime, _datetime.timedelta(seconds=_SHIFT)


class _Kind(type):
    def __instancecheck__(cls, value):
        return isinstance(value, _real)

    def __subclasscheck__(cls, kind):
        return issubclass(kind, _real)


class datetime(_real, metaclass=_Kind):
    __slots__ = ()  # of the size that C code expects

    @classmethod
    def now(cls, tz=None):
        return _real.now(tz) + _shift

    @classmethod
    def utcnow(cls):
        return _real.utcnow() + _shift


_time.time = lambda: _real_time() + _SHIFT
_time.time_ns = lambda: _real_time_ns() + int(_SHIFT * 10**9)
_datetime.datetime = datetime
"""


def shift_clock(monkeypatch: pytest.MonkeyPatch, folder: Path, *, seconds: float) -> None:
    """Shift the time of day in every Python process that is started from now on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITE.format(seconds=seconds))
    monkeypatch.setenv("PYTHONPATH", str(folder))


async def pass_time(monkeypatch: pytest.MonkeyPatch, *, seconds: int) -> None:
    """Let the running loop's clock go on by a second in each of its rounds."""
    loop = asyncio.get_running_loop()
    now = loop.time
    for passed in range(1, seconds + 1):
        monkeypatch.setattr(loop, "time", lambda passed=passed: now() + passed)
        await asyncio.sleep(0)


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
