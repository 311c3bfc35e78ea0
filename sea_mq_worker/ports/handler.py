"""Port PORT-047-005: the service's handler."""

from typing import Protocol

from sea_mq_worker.domain.messages import HandlerRequest
from sea_mq_worker.domain.outcomes import HandlerResult


class EventHandler(Protocol):
    """Applies a message's effect in the service; must be idempotent by message id."""

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler once, within one total deadline; return errors in the result, never raise them."""
        ...
