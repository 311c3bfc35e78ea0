"""Recovery of exhausted messages, which the server stopped delivering because they reached max_deliver."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, call_when_available
from sea_mq_worker.application.inbox.consumer import InboxConsumer
from sea_mq_worker.application.waiting import StoppedError, cancel_on_stop
from sea_mq_worker.ports.jetstream import ExhaustedMessages

_NO_LOOP_DELAY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxDeliveriesLoop:
    """Submits exhausted messages to the loop of their consumer.

    That loop calls the handler, or dead-letters a message without attempts left; a delivery that was given
    back was no attempt. The port returns a message again until it is settled.

    Attributes:
        loops: by stream and durable; a durable that was missing at the start has none yet.
    """

    exhausted: ExhaustedMessages
    loops: Mapping[tuple[str, str], InboxConsumer]
    broker_breaker: CircuitBreaker

    async def run(self, stop: asyncio.Event) -> None:
        """Work until the worker stops."""
        while not stop.is_set():
            try:
                fetching = call_when_available(self.exhausted.fetch, breaker=self.broker_breaker, stop=stop)
                for message in await cancel_on_stop(stop, fetching):
                    if loop := self.loops.get((message.stream, message.consumer)):
                        await loop.submit(message, self.exhausted, stop)
                    else:
                        await self.exhausted.nak(message, delay_seconds=_NO_LOOP_DELAY_SECONDS)
            except StoppedError:
                return
