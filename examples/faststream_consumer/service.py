"""Reports: a FastStream service that reads a context's stream directly, without a worker or a database.

Run it with ``faststream run service:app``. JetStream repeats a message that is not acknowledged in time, so
its effect must be idempotent by ``Nats-Msg-Id``, which is the event's ID.
"""

import os
from typing import Any

from faststream import FastStream, Logger
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub

CONTEXT = os.environ.get("SEA_MQ_CONTEXT", "orders")

broker = NatsBroker(os.environ["SEA_MQ_NATS_URL"])
app = FastStream(broker)
events = JStream(name=f"{CONTEXT.upper()}_EVENTS", declare=False)
seen: set[str] = set()


@broker.subscriber(f"{CONTEXT}.event.>", stream=events, durable="reports", pull_sub=PullSub(batch_size=100))
async def report(payload: dict[str, Any], message: NatsMessage, logger: Logger) -> None:
    event_id = message.headers["Nats-Msg-Id"]
    if event_id not in seen:
        seen.add(event_id)
        logger.info("%s %s", message.headers["ce-type"], payload)
