"""Tracing, imported and set up only where it is switched on."""

from collections.abc import Callable

from sea_mq_worker.ports.handler import EventHandler
from sea_mq_worker.ports.jetstream import JetStreamPublisher


def start_tracing(context: str) -> Callable[[], None]:
    """Export spans as the OTEL_* variables say; the returned function sends the last ones and ends it."""
    from sea_mq_worker.adapters.observability.tracing import configure_tracing  # noqa: PLC0415

    return configure_tracing(service_name=f"sea_mq_worker {context}")


def traced_publisher(inner: JetStreamPublisher) -> JetStreamPublisher:
    """Make a span of every publish."""
    from sea_mq_worker.adapters.observability.tracing import TracedPublisher  # noqa: PLC0415

    return TracedPublisher(inner)


def traced_handler(inner: EventHandler) -> EventHandler:
    """Make spans of every message handled."""
    from sea_mq_worker.adapters.observability.tracing import TracedHandler  # noqa: PLC0415

    return TracedHandler(inner)
