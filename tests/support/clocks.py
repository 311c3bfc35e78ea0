"""Clocks that tests move: the time of day of Python processes, and the time of the running event loop."""

import asyncio
from pathlib import Path

import pytest

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
