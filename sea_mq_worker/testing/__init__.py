"""In-memory fakes of the ports: the rules of the real adapters without servers.

One contract suite tests each fake and its real adapter alike. An example that publishes an event, receives
the message, and handles it::

    import time
    from uuid import uuid4

    from sea_mq_worker.inbox.message import parse_message
    from sea_mq_worker.inbox.message import Accepted
    from sea_mq_worker.testing.consumer import InMemoryConsumer
    from sea_mq_worker.testing.handler import InMemoryHandler
    from sea_mq_worker.testing.stream import InMemoryPublisher
    from sea_mq_worker.testing.stream import InMemoryStream

    clock = time.monotonic
    stream = InMemoryStream(name="SHOP_EVENTS", clock=clock)
    publisher = InMemoryPublisher(stream=stream, clock=clock)
    consumer = InMemoryConsumer(stream=stream, name="billing", clock=clock)
    handler = InMemoryHandler()

    await publisher.publish("shop.event.order_paid.v1", b'{"order": 7}', {"Nats-Msg-Id": str(uuid4())})
    [message] = await consumer.fetch(10)
    request = parse_message(message)
    assert await handler.handle_request(request) == Accepted(200)
    await consumer.ack(message)
"""

from datetime import UTC, datetime

EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
"""The moment at which the given clock is 0."""
