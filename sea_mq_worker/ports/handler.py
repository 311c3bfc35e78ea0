"""Port PORT-047-005: the service's own code."""

from typing import Protocol

from sea_mq_worker.domain.messages import HandlerRequest
from sea_mq_worker.domain.outcomes import HandlerResult


class EventHandler(Protocol):
    """Takes an event's effect into the service; must be idempotent by message id."""

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """Ask the handler once, within one total deadline; trouble is told in the result, never raised."""
        ...
