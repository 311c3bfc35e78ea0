"""Event loops in virtual time: a wait takes no real time, and a wait without an end fails at once."""

import asyncio
import functools
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class _LeapingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, makes it that late."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("everybody waits, and nothing will ever happen")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock leaps from timer to timer."""

    def __init__(self) -> None:
        self._leaping = _LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        """Return the time; a timer is due exactly at its time, or its waiter would wait again."""
        self._clock_resolution = math.ulp(self._leaping.now)
        return self._leaping.now


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test on a VirtualLoop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Interrupted:
    """A port whose calls raise ``error`` while ``down``, and once after ``loses_answer_of`` took effect."""

    def __init__(self, inner: object, error: Exception) -> None:
        self.down = False
        self.loses_answer_of = ""
        self._inner = inner
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._inner, name)

        async def call(*args: object, **given: object) -> object:
            if self.down:
                raise self._error
            answer = await method(*args, **given)
            if self.loses_answer_of == name:
                self.loses_answer_of = ""
                raise self._error
            return answer

        return call
