"""Signals in jobs; in another thread than the main one they go unheeded, as Python has it."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals in the block; one that is ignored, as nohup has it, stays so."""
    is_main = threading.current_thread() is threading.main_thread()
    heeded = [number for number in numbers if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


@contextmanager
def held() -> Iterator[None]:
    """Keep what would end the process until the block is done; a second signal ends it at once."""
    came: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        if came:
            os._exit(128 + number)
        came.append(number)

    with handled(_ENDING, hold):
        yield
    if came:
        signal.raise_signal(came[0])
