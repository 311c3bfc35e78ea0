"""Signals of the commands: stop between two steps of a job, or exit immediately."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sea_mq_worker.pipeline.signals import handled


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Exit with 128 + N at SIGTERM or SIGHUP after the block's cleanup, in the same way as at SIGINT."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    with handled((signal.SIGTERM, signal.SIGHUP), leave):
        yield


@contextmanager
def stopping_on_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM or SIGINT was received; exit at the second signal."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)

    with handled((signal.SIGTERM, signal.SIGINT), receive):
        yield lambda: bool(received)
