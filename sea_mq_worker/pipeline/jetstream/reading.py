"""Read a range of a stream's sequences in one task: each message once, in order, or an error.

There are three ways to the messages, and the first that is open is taken:

* a consumer of the range's own, which needs no acknowledgement, on a stream that removes nothing by them
  (permissions ``$JS.API.CONSUMER.CREATE``, ``.MSG.NEXT`` and ``.DELETE`` of the stream): it costs the server
  a fifth of what the others cost;
* batched direct gets, if the stream allows them (permission ``$JS.API.DIRECT.GET``);
* STREAM.MSG.GET, which the leader answers.

Only the leader decides what is missing, on each way.
"""

import asyncio
import json
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sea_mq_worker.errors import BrokerUnavailableError, ContractError, UnavailableError, WorkerError
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.info import StreamInfo, stream_info
from sea_mq_worker.pipeline.jetstream.columns import ADDED, Frame, to_batch
from sea_mq_worker.pipeline.jetstream.state import IdleTimeout, Leader, connected

if TYPE_CHECKING:
    from sea_mq_worker.pipeline.jetstream.source import JetStreamOptions

_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 * 1024 * 1024
_BATCHES_SINCE = (2, 11)
_PULLED_ROWS_MIN = 1_000
"""Sequences for which a consumer is worth the two requests that create and delete it."""

_INACTIVE_NANOSECONDS = 30 * 10**9
_SILENT_SECONDS_MAX = 10.0
_STATUS = slice(len(b"NATS/1.0 "), len(b"NATS/1.0 404"))
_GAP = {b"", b"204", b"404"}
"""Ends of an answer; what it lacks is a gap for the leader."""


@dataclass
class SequenceRange(InputPartition):
    """Sequences ``first`` to ``last``, both included, of the stream with this creation time.

    ``floats``: the range begins at the stream's first message, whichever that is when the task reads. The
    stream's age limit may remove messages until then; nothing before them was read, so no gap arises.
    """

    created: str
    first: int
    last: int
    floats: bool = False


def split_range(created: str, first: int, last: int, *, size: int, floats: bool) -> list[InputPartition]:
    """Split a range into parts of ``size``, the first of which may float; an empty range is one part."""
    starts = range(first, last + 1, size) or (first,)
    return [
        SequenceRange(created, start, min(start + size - 1, last), floats=floats and start == first)
        for start in starts
    ]


def read_range(options: "JetStreamOptions", sequences: SequenceRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range.

    If the servers are unavailable, wait up to a minute, and continue after the last row.

    Raises:
        UnavailableError: the servers stayed unavailable.
        ContractError: the server refuses the connection or the request, or the stream is missing.
        DataLossError: messages were deleted before they were read.
    """
    if sequences.first > sequences.last:
        return
    with asyncio.Runner() as runner:
        batches = _resumed(options, sequences)

        async def following() -> pa.RecordBatch | None:
            return await anext(batches, None)

        try:
            while batch := runner.run(following()):
                yield batch
        finally:
            runner.run(batches.aclose())


async def _resumed(
    options: "JetStreamOptions", sequences: SequenceRange
) -> AsyncGenerator[pa.RecordBatch, None]:
    settings = options.settings()
    at = sequences.first
    idle = IdleTimeout()
    while True:
        try:
            async with connected(settings) as connection, Inbox.of(connection) as inbox:
                read = _Read(connection, inbox, options, sequences)
                try:
                    await read.begin(at)
                    while at <= sequences.last:
                        batch, at = await read.step(at)
                        if batch.num_rows:
                            yield batch
                        idle.renew()
                    await read.checked_state()
                finally:
                    await read.end()
                return
        except UnavailableError as error:
            idle.pause(error)


@dataclass
class _Read:
    """A range read over one connection."""

    connection: NatsConnection
    inbox: "Inbox"
    options: "JetStreamOptions"
    sequences: SequenceRange
    pulls: bool = False
    direct: bool = False
    consumer: str = ""
    consumer_at: int = 0
    """The sequence from which on the consumer delivers."""

    def __post_init__(self) -> None:
        self.leader = Leader(self.connection, self.options.stream, self.options.subject or ">")

    async def begin(self, at: int) -> None:
        """Choose the ways that the stream and the server allow."""
        state = await self.checked_state()
        self.direct = state.allow_direct and self.connection.server_version >= _BATCHES_SINCE
        is_long = self.sequences.last - at >= _PULLED_ROWS_MIN or not self.direct
        # Elsewhere a consumer removes what it is sent, or takes the place of another.
        config = state.config
        is_free = config.get("retention", "limits") == "limits" and config.get("max_consumers", -1) <= 0
        self.pulls = is_long and is_free

    async def step(self, at: int) -> tuple[pa.RecordBatch, int]:
        """Return some rows from ``at`` on, and the sequence at which to continue."""
        batch, end = self._batch([]), at
        if (frames := await self._frames(at)) is not None:
            batch, end = await self._confirmed(self._batch(frames), at)
        if end == at:
            frames, end = await self.leader.read(at, self.sequences.last)
            batch = self._batch(frames)
        floating = self.sequences.first if self.sequences.floats else None
        if gaps := [first for first, _ in _gaps(_seqs(batch), at, end) if first != floating]:
            await self.checked_state(first=gaps[0])
        return batch, end

    async def end(self) -> None:
        """Delete the consumer; without the permission, or a connection, the server does it later."""
        consumer, self.consumer = self.consumer, ""
        with suppress(WorkerError):
            if consumer:
                await api(self.connection, f"CONSUMER.DELETE.{self.options.stream}.{consumer}")

    async def checked_state(self, *, first: int | None = None) -> StreamInfo:
        """Return the stream's state, unless it was replaced, or sequences from ``first`` on were removed."""
        state = await stream_info(self.connection, self.options.stream)
        wanted = self.sequences
        self.options.check(state, created=wanted.created, first=first, last=wanted.last)
        return state

    async def _frames(self, at: int) -> list[Frame] | None:
        """Request messages from ``at`` on, by the first way that is open; None: only the leader answers."""
        count = min(_BATCH_ROWS, self.sequences.last - at + 1)
        size = max(_BATCH_BYTES, 2 * self.connection.client.max_payload)
        if self.pulls:
            try:
                return await self._pulled(at, {"batch": count, "max_bytes": size, "no_wait": True})
            except ContractError:
                self.pulls = False
        if not self.direct:
            return None
        subject = {"next_by_subj": self.options.subject} if self.options.subject else {}
        request = {"seq": at, "batch": count, "max_bytes": size, **subject}
        return await self.inbox.fetch(f"DIRECT.GET.{self.options.stream}", request)

    async def _pulled(self, at: int, request: dict[str, Any]) -> list[Frame]:
        stream, chosen = self.options.stream, self.options.subject
        if at != self.consumer_at or not self.consumer:
            await self.end()
            name = f"sea_mq_{uuid4().hex}"
            config = {
                "name": name,
                "ack_policy": "none",
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": at,
                "mem_storage": True,
                "num_replicas": 1,
                "inactive_threshold": _INACTIVE_NANOSECONDS,
                **({"filter_subject": chosen} if chosen else {}),
            }
            subject = ".".join(filter(None, ("CONSUMER.CREATE", stream, name, chosen)))
            await api(self.connection, subject, {"stream_name": stream, "config": config})
            self.consumer, self.consumer_at = name, at
        return await self.inbox.fetch(f"CONSUMER.MSG.NEXT.{stream}.{self.consumer}", request)

    async def _confirmed(self, batch: pa.RecordBatch, at: int) -> tuple[pa.RecordBatch, int]:
        """Return the rows from ``at`` up to the first gap that the leader denies, and the next sequence."""
        last, seqs = self.sequences.last, _seqs(batch)
        if seqs and self.pulls:
            self.consumer_at = seqs[-1] + 1
        end = seqs[-1] + 1 if seqs and seqs[-1] <= last else last + 1
        denied = await self.leader.first_denied(_gaps(seqs[: bisect_left(seqs, end)], at, end))
        end = denied or end
        return batch.slice(0, bisect_left(seqs, end)), end

    def _batch(self, frames: Sequence[Frame]) -> pa.RecordBatch:
        return to_batch(self.options.stream, self.sequences.created, frames)


def _seqs(batch: pa.RecordBatch) -> list[int]:
    seqs: list[int] = batch.column("seq").to_pylist()
    return seqs


def _gaps(seqs: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
    """Return first and last sequence of each run that is missing from ``start`` on, before ``end``."""
    if len(seqs) == end - start:
        return []
    edges = zip([start - 1, *seqs], [*seqs, end], strict=True)
    return [(before + 1, after - 1) for before, after in edges if after - before > 1]


class Inbox:
    """Sends requests, one at a time, and receives the raw frames of each answer.

    nats-py makes an object of each message and a mapping of its headers: that loses repeated names, and costs
    more than the rest of a read. The method that receives a frame is not in nats-py's public API; the pinned
    version guards it.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._prefix = connection.client.new_inbox()
        self._number = 0
        self._subject = ""
        self._reply = b""
        self._wanted = 0
        self._is_pull = False
        self._frames: list[Frame] = []
        self._ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    @classmethod
    @asynccontextmanager
    async def of(cls, connection: NatsConnection) -> AsyncIterator["Inbox"]:
        """Receive on a connection during the block."""
        inbox, client = cls(connection), connection.client
        own_id = (await client.subscribe(f"{inbox._prefix}.*"))._id  # noqa: SLF001
        stock = client._process_msg  # noqa: SLF001

        async def process(sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
            if sid == own_id:
                inbox._receive(subject, reply or b"", data, headers or b"")
            else:
                await stock(sid, subject, reply, data, headers)

        client._process_msg = process  # type: ignore[method-assign]  # noqa: SLF001
        connection.listen(inbox._on_event)
        try:
            yield inbox
        finally:
            client._process_msg = stock  # type: ignore[method-assign]  # noqa: SLF001

    async def fetch(self, subject: str, request: dict[str, Any]) -> list[Frame]:
        """Return the messages of the answer, in the stream's order; empty if nothing matches.

        Raises:
            BrokerUnavailableError: no answer, or an incomplete one.
            ContractError: the permission is missing, or the server refuses the request.
        """
        self._frames, self._wanted = [], request["batch"]
        self._is_pull = subject.startswith("CONSUMER.")
        self._number += 1
        reply = f"{self._prefix}.{self._number}"
        self._reply, self._subject = reply.encode(), self._connection.api_subject(subject)
        self._ended = asyncio.get_running_loop().create_future()
        if not self._connection.is_connected:
            raise BrokerUnavailableError(f"{self._subject}: the connection is down")
        await self._connection.client.publish(self._subject, json.dumps(request).encode(), reply)
        while not self._ended.done():
            before = len(self._frames)
            await asyncio.wait({self._ended}, timeout=_SILENT_SECONDS_MAX)
            if len(self._frames) == before and not self._ended.done():
                self._ended.cancel()
                raise BrokerUnavailableError(f"{self._subject}: the response stopped before its end")
        self._judge(self._ended.result())
        return self._frames

    def _judge(self, end: bytes) -> None:
        """Raise an error unless the answer has ended."""
        status = end[_STATUS]
        if status in _GAP or (self._is_pull and (status == b"408" or b"Exceeds MaxBytes" in end)):
            return
        text = end.partition(b"\r\n")[0].decode(errors="replace")
        if status in {b"400", b"408", b"413"} or b"Exceeded" in end:
            raise ContractError(f"{self._subject}: the server refuses the request: {text}")
        raise BrokerUnavailableError(f"{self._subject}: the response is incomplete: {text}")

    def _receive(self, subject: bytes, reply: bytes, data: bytes, head: bytes) -> None:
        is_delivery = self._is_pull and reply.startswith(b"$JS.ACK.")
        if self._ended.done() or not (is_delivery or subject == self._reply):
            return
        if is_delivery or ADDED in head:
            self._frames.append((head, data, subject, reply))
            if len(self._frames) == self._wanted:
                self._ended.set_result(b"")
        else:
            self._ended.set_result(head)

    def _on_event(self, event: str, text: str) -> None:
        if self._ended.done():
            return
        if event == "disconnected":
            self._ended.set_exception(BrokerUnavailableError(f"the connection was lost: {text}"))
        elif event == "denied" and text.lower() == self._subject.lower():
            self._ended.set_exception(
                ContractError(f"the worker has no permission to publish to {self._subject}; grant it")
            )
