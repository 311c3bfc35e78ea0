"""Signals for jobs that look up between two steps whether they are to end."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals() -> Iterator[Callable[[], bool]]:
    """Provide what tells whether SIGTERM or SIGINT came; at a second one leave with 128 + its number."""
    came: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        if came:
            os._exit(128 + number)
        came.append(number)

    former = {number: signal.signal(number, receive) for number in _SIGNALS}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
