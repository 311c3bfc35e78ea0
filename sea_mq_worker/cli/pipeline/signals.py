"""Signals for jobs: some look up between two steps whether they are to end, others are left as they stand."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sea_mq_worker.pipeline.signals import handled


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Leave the block in order at SIGTERM or SIGHUP, as at SIGINT, with 128 + its number."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    with handled((signal.SIGTERM, signal.SIGHUP), leave):
        yield


@contextmanager
def stopping_on_signals() -> Iterator[Callable[[], bool]]:
    """Provide what tells whether SIGTERM or SIGINT came; at a second one leave with 128 + its number."""
    came: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        if came:
            os._exit(128 + number)
        came.append(number)

    with handled((signal.SIGTERM, signal.SIGINT), receive):
        yield lambda: bool(came)
