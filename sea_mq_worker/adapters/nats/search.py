"""Which message ids a stream holds: a scan of headers by a consumer that exists only for it."""

import asyncio
import contextlib
import json
import uuid
from datetime import UTC, datetime, timedelta

from nats.aio.msg import Msg

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.facts import stream_facts
from sea_mq_worker.domain.errors import BrokerUnavailableError, WorkerError
from sea_mq_worker.domain.headers import MSG_ID
from sea_mq_worker.domain.outcomes import Stored

_PULL_MESSAGES = 1000
_SILENT_SECONDS_MAX = 10.0
_INACTIVE_SECONDS = 60
_EPOCH = datetime(1970, 1, 2, tzinfo=UTC)


async def find_ids(
    connection: NatsConnection, stream: str, ids: frozenset[str], *, since_seconds: float
) -> dict[str, Stored]:
    """Return the latest stored copy of each id since then, up to the last message as of now.

    Raises:
        BrokerUnavailableError: the scan had a gap or could not go on.
        ContractError: no such stream, or no permission.
    """
    facts = await stream_facts(connection, stream)
    start = max(facts.now - timedelta(seconds=min(since_seconds, 1e9)), _EPOCH)
    scan = _Scan(connection, stream, ids, facts.last_seq)
    await scan.open(start)
    try:
        await scan.run()
    finally:
        await scan.close()
    return scan.found


class _Scan:
    def __init__(self, connection: NatsConnection, stream: str, ids: frozenset[str], last_seq: int) -> None:
        self.found: dict[str, Stored] = {}
        self._connection = connection
        self._stream = stream
        self._ids = ids
        self._last_seq = last_seq
        self._consumer = f"sea-mq-find-{uuid.uuid4().hex}"
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._inbox = connection.client.new_inbox()
        self._received = 0
        self._pending = 0

    async def open(self, start: datetime) -> None:
        config = {
            "name": self._consumer,
            "ack_policy": "none",
            "deliver_policy": "by_start_time",
            "opt_start_time": start.isoformat(),
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_SECONDS * 1_000_000_000,
        }
        self._subscription = await self._connection.client.subscribe(
            self._inbox, cb=self._on_message, pending_bytes_limit=0
        )
        created = await api(
            self._connection,
            f"CONSUMER.CREATE.{self._stream}.{self._consumer}",
            {"stream_name": self._stream, "action": "create", "config": config},
        )
        self._pending = int(created.get("num_pending", 0))

    async def run(self) -> None:
        """Read on until the last message, or until nothing is left before it."""
        while self._pending > 0:
            await self._pull(min(self._pending, _PULL_MESSAGES))

    async def close(self) -> None:
        """Remove the consumer now; should that fail, the server does it after a while."""
        with contextlib.suppress(Exception):
            await self._subscription.unsubscribe()
        with contextlib.suppress(WorkerError):
            await api(self._connection, f"CONSUMER.DELETE.{self._stream}.{self._consumer}")

    async def _on_message(self, msg: Msg) -> None:
        self._arrived.put_nowait(msg)

    async def _pull(self, batch: int) -> None:
        request = json.dumps({"batch": batch, "expires": int(_SILENT_SECONDS_MAX * 1e9)}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        await self._connection.client.publish(subject, request, self._inbox)
        for _ in range(batch):
            try:
                async with asyncio.timeout(_SILENT_SECONDS_MAX):
                    msg = await self._arrived.get()
            except TimeoutError as error:
                raise BrokerUnavailableError("the stream sends nothing more") from error
            self._note(msg)
            if not self._pending:
                return

    def _note(self, msg: Msg) -> None:
        headers = msg.headers or {}
        tokens = msg.reply.split(".")
        if len(tokens) < _ACK_TOKENS_MIN:
            status = headers.get("Status", "no status"), headers.get("Description", "")
            raise BrokerUnavailableError(f"the stream stopped sending ({' '.join(status)})")
        shift = 0 if len(tokens) == _ACK_TOKENS_MIN else 2
        seq, place, left = (int(tokens[shift + at]) for at in (5, 6, 8))
        self._received += 1
        if place != self._received:
            raise BrokerUnavailableError("a message was lost on the way")
        self._pending = 0 if seq >= self._last_seq else left
        message_id = headers.get(MSG_ID, "")
        if message_id in self._ids:
            self.found[message_id] = Stored(self._stream, seq, duplicate=True)


_ACK_TOKENS_MIN = 9
"""``$JS.ACK.stream.consumer.deliveries.seq.place.time.left``; newer ones have domain and account first."""
