"""Searches a stream for message ids: a scan of headers by a temporary consumer."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nats.aio.msg import Msg

from sea_mq_worker.errors import BrokerUnavailableError, ContractError, WorkerError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.errors import number
from sea_mq_worker.nats.headers import MSG_ID, is_same_message
from sea_mq_worker.nats.info import StreamInfo, read_back, stream_info
from sea_mq_worker.nats.message import (
    OutboundMessage,
    SearchedId,
    SearchProgress,
    SearchResult,
    Stored,
    ack_tokens,
)

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

_PULL_MESSAGES = 1000
_SILENT_SECONDS_MAX = 10.0
_INACTIVE_SECONDS = 60
_SUBJECTS_MAX = 32
"""Cap on filter subjects, because many filters slow the server down; with more, all messages are read."""
_EPOCH = datetime(1970, 1, 2, tzinfo=UTC)


async def find_messages(
    connection: NatsConnection, stream: str, wanted: Sequence[SearchedId], *, timeout_seconds: float
) -> dict[str, SearchResult]:
    """Search for each id up to the stream's present last message, within the time limit.

    Return the place of each id found, and the progress of each search that found nothing. Another writer's
    message under an id does not count, unless the worker has no right to read messages.

    Raises:
        BrokerUnavailableError: nothing could be read.
        ContractError: no such stream, or no permission.
    """
    scan: _Scan | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            scan = _Scan(connection, stream, wanted, await stream_info(connection, stream))
            await scan.run()
            await scan.compare()
    except (WorkerError, TimeoutError) as error:
        if scan is None or not scan.has_read:
            if isinstance(error, WorkerError):
                raise
            raise BrokerUnavailableError(f"no answer within {timeout_seconds:g} s") from error
    finally:
        if scan is not None:
            await scan.close()
    return {each: scan.result(each) for each in scan.wanted}


class _Scan:
    """One scan of a stream for all wanted ids, from the position of the least advanced search.

    Attributes:
        has_read: the scan has read at least one message, or there was none to read.
    """

    def __init__(
        self, connection: NatsConnection, stream: str, wanted: Sequence[SearchedId], info: StreamInfo
    ) -> None:
        self.has_read = False
        self._connection = connection
        self._stream = stream
        self._info = info
        self.wanted = {each.id: each._replace(looked=self._known(each.looked)) for each in wanted}
        looked = [each.looked for each in self.wanted.values()]
        self._until = max((far.until for far in looked if far), default=0) if all(looked) else info.last_seq
        self._through = 0
        self._copies: dict[str, list[int]] = {}
        self._compared: set[str] = set()
        self._consumer = f"sea-mq-find-{uuid.uuid4().hex}"
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._inbox = connection.client.new_inbox()
        self._subscription: Subscription | None = None
        self._received = 0
        self._pending = 0

    def _known(self, looked: SearchProgress | None) -> SearchProgress | None:
        """Return the progress if it belongs to this stream; an endless one ends at the present end."""
        if looked is None or looked.created != self._info.created or looked.through > self._info.last_seq:
            return None
        return looked if looked.until else looked._replace(until=self._info.last_seq)

    async def run(self) -> None:
        """Read up to the last wanted sequence."""
        self._subscription = await self._connection.client.subscribe(
            self._inbox, cb=self._on_message, pending_bytes_limit=0
        )
        config = {
            "name": self._consumer,
            "ack_policy": "none",
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_SECONDS * 1_000_000_000,
            **self._part(),
        }
        created = await api(
            self._connection,
            f"CONSUMER.CREATE.{self._stream}.{self._consumer}",
            {"stream_name": self._stream, "action": "create", "config": config},
        )
        self._pending = number(created, "num_pending")
        while self._pending > 0:
            await self._pull(min(self._pending, _PULL_MESSAGES))
        self._through = self._until
        self.has_read = True

    def _part(self) -> dict[str, object]:
        """Return which part of the stream to read, as in the consumer's configuration."""
        looked = [each.looked for each in self.wanted.values()]
        part: dict[str, object]
        if all(looked):
            first = min(far.through for far in looked if far) + 1
            part = {"deliver_policy": "by_start_sequence", "opt_start_seq": first}
        else:
            since = max(each.since_seconds for each in self.wanted.values())
            start = max(self._info.now - timedelta(seconds=min(since, 1e9)), _EPOCH)
            part = {"deliver_policy": "by_start_time", "opt_start_time": start.isoformat()}
        subjects = sorted({each.subject for each in self.wanted.values()})
        if self._info.transforms_subjects or len(subjects) > _SUBJECTS_MAX:
            return part
        is_stored_as_published = all(map(self._info.takes, subjects))
        return part | {"filter_subjects": subjects} if is_stored_as_published else part

    def result(self, message_id: str) -> SearchResult:
        wanted, copies = self.wanted[message_id], self._copies.get(message_id)
        if copies and (wanted.message is None or message_id in self._compared):
            return Stored(self._stream, copies[-1], duplicate=True)
        through = copies[0] - 1 if copies else self._through
        if wanted.looked:
            return wanted.looked._replace(through=max(wanted.looked.through, through))
        return SearchProgress(self._info.created, through, self._info.last_seq)

    async def compare(self) -> None:
        """Drop other writers' messages; without the right to read messages, all count as the wanted ones."""
        for each in self.wanted.values():
            copies = self._copies.get(each.id, [])
            while each.message and copies and not await self._is_own(each.message, copies[-1]):
                copies.pop()
            self._compared.add(each.id)

    async def _is_own(self, message: OutboundMessage, seq: int) -> bool:
        try:
            copy = await read_back(self._connection, self._stream, "", seq)
        except ContractError:
            return True
        return copy is not None and is_same_message(message, copy.subject, copy.payload, copy.headers)

    async def close(self) -> None:
        """Delete the consumer; if that fails, the server deletes it after its inactivity threshold."""
        if self._subscription is None:
            return
        with contextlib.suppress(Exception):
            await self._subscription.unsubscribe()
        with contextlib.suppress(WorkerError):
            await api(self._connection, f"CONSUMER.DELETE.{self._stream}.{self._consumer}")

    async def _on_message(self, msg: Msg) -> None:
        self._arrived.put_nowait(msg)

    async def _pull(self, batch: int) -> None:
        request = json.dumps({"batch": batch, "expires": int(_SILENT_SECONDS_MAX * 1e9)}).encode()
        subject = self._connection.api_subject(f"CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}")
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
        tokens = ack_tokens(msg.reply)
        if not tokens:
            status = headers.get("Status", "no status"), headers.get("Description", "")
            raise BrokerUnavailableError(f"the stream stopped sending ({' '.join(status)})")
        seq, place, left = int(tokens[3]), int(tokens[4]), int(tokens[6])
        self._received += 1
        if place != self._received:
            raise BrokerUnavailableError("a message was lost on the way")
        self._pending = 0 if seq >= self._until else left
        self._through = seq
        self.has_read = True
        wanted = self.wanted.get(headers.get(MSG_ID, ""))
        if wanted and seq != wanted.other_than:
            self._copies.setdefault(wanted.id, []).append(seq)
