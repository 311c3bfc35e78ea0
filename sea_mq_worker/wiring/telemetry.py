"""OpenTelemetry, imported and started only if it is enabled."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

from sea_mq_worker.ports import EventHandler, JetStreamPublisher
from sea_mq_worker.runtime.supervisor import Loop
from sea_mq_worker.runtime.waiting import StoppedError, cancel_on_stop, sleep_or_stop
from sea_mq_worker.settings import SettingsError
from sea_mq_worker.wiring.context import WorkerContext

_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS = "60000"


def start_tracing(base: WorkerContext) -> None:
    """Export spans as configured by the OTEL_* variables, the last ones at the worker's end.

    Raises:
        SettingsError: a variable is out of range, or contradicts another.
    """
    from sea_mq_worker.telemetry.otlp import described, export_spans  # noqa: PLC0415

    try:
        shutdown = export_spans(described(context=base.settings.context, worker=base.name))
    except ValueError as error:
        raise SettingsError(f"OTEL_*: {error}") from None
    base.stack.push_async_callback(_aside, shutdown)


def metrics_export(base: WorkerContext) -> Loop:
    """Return the loop that exports metrics as configured by OTEL_* variables, and at the worker's end.

    Raises:
        SettingsError: the interval is not a number.
    """
    from sea_mq_worker.telemetry.otlp import described, metrics_data, metrics_exporter  # noqa: PLC0415

    export = metrics_exporter()
    resource = described(context=base.settings.context, worker=base.name)
    since_ns = time.time_ns()
    seconds = _interval_seconds()

    async def export_now() -> None:
        data = metrics_data(base.metrics, resource=resource, since_ns=since_ns)
        await _aside(lambda: export(data))

    async def run(stop: asyncio.Event) -> None:
        while not stop.is_set():
            await sleep_or_stop(stop, seconds=seconds)
            with contextlib.suppress(StoppedError):
                await cancel_on_stop(stop, export_now())

    base.stack.push_async_callback(export_now)
    return run


async def _aside(work: Callable[[], object]) -> None:
    """Run the work in a daemon thread, which an unavailable collector can block without delaying the exit."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="otlp export", daemon=True).start()
    await done.wait()


def _interval_seconds() -> float:
    given = os.environ.get(_INTERVAL, _INTERVAL_MS)
    if not given.isdecimal() or int(given) == 0:
        raise SettingsError(f"{_INTERVAL}: expected milliseconds, a whole number above 0")
    return int(given) / 1000


def traced_publisher(inner: JetStreamPublisher) -> JetStreamPublisher:
    from sea_mq_worker.telemetry.tracing import TracedPublisher  # noqa: PLC0415

    return TracedPublisher(inner)


def traced_handler(base: WorkerContext, inner: EventHandler) -> EventHandler:
    from sea_mq_worker.telemetry.tracing import TracedHandler  # noqa: PLC0415

    url = base.settings.handler_batch_url or base.settings.handler_url
    return TracedHandler(inner, url)
