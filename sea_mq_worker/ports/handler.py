"""Port PORT-047-005: the service's handler."""

from typing import Protocol

from sea_mq_worker.domain.messages import HandlerRequest
from sea_mq_worker.domain.outcomes import HandlerResult, NotDelivered


class EventHandler(Protocol):
    """Applies a message's effect in the service; must be idempotent by message id."""

    async def handle(self, event_type: str, payload: bytes) -> HandlerResult:
        """Call the handler for a message of one's own, with a new id: SDS-047's call."""
        return await self.handle_request(HandlerRequest.new(event_type, payload))

    async def handle_request(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler once, within one total deadline; return errors in the result, never raise them."""
        ...

    async def reach(self) -> NotDelivered | None:
        """Open a connection and send nothing; return the reason why no call can be made, or None."""
        ...
