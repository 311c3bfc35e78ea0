"""Signals in jobs; only the main thread can handle them, as Python requires."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def _handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
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
def _received(numbers: Iterable[int]) -> Iterator[list[int]]:
    """Collect the signals of the block; exit at the second one."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)

    with _handled(numbers, receive):
        yield received


@contextmanager
def held() -> Iterator[None]:
    """Defer signals that end the process until the block is done; a second signal ends it immediately."""
    with _received((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) as numbers:
        yield
    if numbers:
        signal.raise_signal(numbers[0])


@contextmanager
def stopping_on_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM or SIGINT was received; exit at the second signal."""
    with _received((signal.SIGTERM, signal.SIGINT)) as numbers:
        yield lambda: bool(numbers)


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Exit with 128 + N at SIGTERM or SIGHUP after the block's cleanup, in the same way as at SIGINT."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    with _handled((signal.SIGTERM, signal.SIGHUP), leave):
        yield
