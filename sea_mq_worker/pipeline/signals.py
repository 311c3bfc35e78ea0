"""Signals in jobs; only the main thread can handle them, as Python requires."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals in the block; a signal that is ignored, as by nohup, stays ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    active = [number for number in numbers if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, handler) for number in active}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


@contextmanager
def held() -> Iterator[None]:
    """Defer signals that end the process until the block is done; a second signal ends it immediately."""
    received: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)

    with handled(_ENDING, hold):
        yield
    if received:
        signal.raise_signal(received[0])
