"""Traffic through one durable: a producer, and consumers that settle each message after a short while."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from sea_mq_worker.inbox.jetstream import NatsJetStreamConsumer
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import consumer_info
from sea_mq_worker.nats.message import InboundMessage
from tests.support.waiting import eventually

_BATCHES = (5, 25, 50)
_SECONDS = (0.01, 0.08)
"""Duration of the handling of a message."""
_BURST = 20
_CONSUMERS = 3


class Traffic:
    """Consumers of one durable that have reached its max_ack_pending most of the time.

    Attributes:
        seen: stream sequences of the messages that a consumer has settled.
    """

    def __init__(
        self,
        open_consumer: Callable[[], AbstractAsyncContextManager[NatsConnection]],
        stream: str,
        durable: str,
    ) -> None:
        self._open = open_consumer
        self._stream, self._durable = stream, durable
        self._random = random.Random(1)
        self.seen: set[int] = set()

    async def run(self, producer: NatsConnection, subject: str, count: int) -> None:
        """Publish; halfway one consumer ends and another begins. At the end every message is settled."""
        consuming = [asyncio.create_task(self._consume()) for _ in range(_CONSUMERS)]
        for number in range(count):
            await producer.client.publish(subject, b"{}")
            if number % _BURST == 0:
                await asyncio.sleep(self._random.uniform(0.001, 0.04))
            if number == count // 2:
                consuming[0].cancel()
                consuming.append(asyncio.create_task(self._consume()))

        async def settled() -> bool:
            return len(self.seen) == count

        try:
            await eventually(settled, within=30.0, what="every message is settled")
            async with self._open() as connection:

                async def unsettled() -> int:
                    return (await consumer_info(connection, self._stream, self._durable)).ack_pending

                await eventually(
                    unsettled, until=lambda left: left == 0, within=5.0, what="nothing is pending"
                )
        finally:
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)

    async def _consume(self) -> None:
        """Consume until cancelled; then settle what was taken."""
        settling = set[asyncio.Task[None]]()
        async with self._open() as connection:
            consumer = NatsJetStreamConsumer(
                connection=connection, stream=self._stream, durable=self._durable
            )
            try:
                while True:
                    for message in await consumer.fetch(self._random.choice(_BATCHES)):
                        settling.add(asyncio.create_task(self._settle(consumer, message)))
            finally:
                await asyncio.gather(*settling)
                await consumer.close()

    async def _settle(self, consumer: NatsJetStreamConsumer, message: InboundMessage) -> None:
        await asyncio.sleep(self._random.uniform(*_SECONDS))
        await consumer.ack(message)
        self.seen.add(message.seq)
