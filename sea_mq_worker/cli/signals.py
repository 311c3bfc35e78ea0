"""Signals: the first starts a graceful stop, the second ends the process at once."""

import asyncio
import os
import signal

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set ``stop`` at SIGTERM, SIGINT or SIGHUP; at the second one exit with 128 + its number.

    SIGHUP stays ignored under nohup.
    """

    def receive(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue
        loop.add_signal_handler(number, receive, number)
