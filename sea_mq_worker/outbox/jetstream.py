"""NatsJetStreamPublisher (PORT-047-003): publishes to one stream over one connection.

*Pipelined*: messages go out without a wait in between, each with an acknowledgement of its own. It works on
any server, and keeps no order where one message is refused.

*By atomic batches* (server 2.12 and later): a batch is stored whole, or not at all. The stored messages have
consecutive sequences, and a known message id refuses the whole batch, so that one acknowledgement proves each
message's place. Messages of a batch that is not certainly stored are sent again one by one, under the same
ids. The first message that is not stored ends the call. For example, with four events::

    batch A B C D   its acknowledgement does not arrive: all four are possibly published
    send A again    Stored: the stream knows the id, because the batch had stored A
    send B again    FailedTransiently: the call ends
    C, D            Unknown, because the batch sent them; Unsent if it had not

With ``sync_interval: always`` and one replica, the server flushes once per batch instead of once per message.
There is no mode for the server's fast ingest: it skips a known id silently, so that no acknowledgement proves
which messages are stored.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal, TypeAlias

from sea_mq_worker.errors import BrokerUnavailableError, ContractError, WorkerError
from sea_mq_worker.nats.connection import PENDING_BYTES_MAX, NatsConnection
from sea_mq_worker.nats.errors import number, parse
from sea_mq_worker.nats.headers import MSG_ID, EncodedMessage, encode, is_same_message
from sea_mq_worker.nats.info import StreamInfo, read_back, stream_info
from sea_mq_worker.nats.message import (
    NOT_CONNECTED,
    FailedTransiently,
    InboundMessage,
    OutboundMessage,
    PublishOutcome,
    Rejected,
    SearchedId,
    SearchResult,
    Stored,
    Unknown,
    Unsent,
)
from sea_mq_worker.outbox.acks import (
    NO_STREAM,
    NOT_ATOMIC,
    TIMED_OUT,
    ReplyMux,
    Sending,
    ack_reader,
    judge_ack,
)
from sea_mq_worker.outbox.scan import find_messages

Mode: TypeAlias = Literal["auto", "pipeline", "atomic"]

_TURN_MESSAGES = 256
"""Messages per write, so that other tasks get to run in between."""
_TURN_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of messages that are written together; one larger message is written alone."""
_BUFFERED_BYTES_MAX = PENDING_BYTES_MAX - _TURN_BYTES_MAX
_STALLED_SECONDS = 0.02
_BATCH_MESSAGES = 1000
"""Most messages that the server takes in a batch."""
_NO_BATCH_SECONDS = 10.0
"""Seconds without atomic batches in mode ``auto`` after the stream refused a message."""
_INFO_TIMEOUT_SECONDS = 2.0
_INFO_FRESH_SECONDS = 1.0
"""Age up to which the stream's information counts as present: repeats may be in every claim."""
_INFO_SHARE = 0.25
"""Share of a deadline that the request for the stream's information may take."""
_READS_AT_ONCE = 32
_BAD_REQUEST = 400
_HELD_BACK = Unsent("held back behind a message that was not stored")
_STORES_NOTHING = Unknown(
    "nats-server reports the stream and acknowledges no message: its log has the reason, such as a full disk"
)


class NatsJetStreamPublisher:
    """Publishes to ``stream``, whose acknowledgements alone count; JetStreamPublisher's rules hold.

    ``mode``: ``atomic`` needs ``allow_atomic`` on the stream, and keeps the order of every batch; ``auto`` is
    ``atomic`` for a batch that has to keep its order, while the stream allows it and refuses nothing, else
    ``pipeline``. The time-outs are those of a single ``publish`` and of a ``find``.
    """

    def __init__(
        self,
        *,
        connection: NatsConnection,
        stream: str,
        mode: Mode = "auto",
        publish_timeout_seconds: float = 10.0,
        find_timeout_seconds: float = 60.0,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._mode = mode
        self._publish_timeout_seconds = publish_timeout_seconds
        self._find_timeout_seconds = find_timeout_seconds
        self._replies = ReplyMux(connection)
        self._read = ack_reader(stream, connection.domain)
        self._in_order = asyncio.Lock()
        self._forbids_batches = False
        self._last_seq = 0
        self._info: StreamInfo
        self._info_read_at = float("-inf")
        self._info_is_stale = False
        self._batch_failed_at = float("-inf")

    async def start(self) -> None:
        """Request what the stream allows.

        Raises:
            BrokerUnavailableError: the server does not answer now.
            ContractError: the stream is missing, unusable or does not allow the mode, or the worker has no
                permission to request its information.
        """
        self._info = await stream_info(self._connection, self._stream)
        if self._info.unusable_reason:
            raise ContractError(self._info.unusable_reason)
        if self._mode == "atomic" and not self._info.allow_atomic:
            raise ContractError(
                f"publish mode atomic needs allow_atomic on stream {self._stream}; set it there or use `auto`"
            )
        self._last_seq = self._info.last_seq
        await self._replies.start()
        self._connection.listen(self._on_event)

    @property
    def connected(self) -> bool:
        return self._connection.is_connected

    @property
    def keeps_order(self) -> bool:
        return self._is_atomic(in_order=True)

    @property
    def duplicate_window_seconds(self) -> float:
        return self._info.duplicate_window_seconds

    @property
    def max_payload(self) -> int:
        return self._connection.client.max_payload

    async def read_duplicate_window(self) -> float:
        is_fresh = asyncio.get_running_loop().time() - self._info_read_at <= _INFO_FRESH_SECONDS
        is_known = is_fresh or await self._refresh_info(_INFO_TIMEOUT_SECONDS)
        return self.duplicate_window_seconds if is_known else 0.0

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        message = OutboundMessage(
            id=headers.get(MSG_ID, ""), subject=subject, payload=payload, headers=headers
        )
        deadline = asyncio.get_running_loop().time() + self._publish_timeout_seconds
        return (await self._publish([message], deadline, in_order=False))[0]

    async def publish_batch(
        self, messages: Sequence[OutboundMessage], *, timeout_seconds: float, in_order: bool = False
    ) -> Sequence[PublishOutcome]:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        outcomes = await self._publish(messages, deadline, in_order=in_order)
        if any(isinstance(outcome, Stored) and outcome.duplicate for outcome in outcomes):
            await self._judge_duplicates(messages, outcomes, deadline)
        return outcomes

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        try:
            if not wanted:
                info = await stream_info(self._connection, self._stream)
                if info.unusable_reason:
                    raise BrokerUnavailableError(info.unusable_reason)
                return {}
            return await find_messages(
                self._connection, self._stream, wanted, timeout_seconds=self._find_timeout_seconds
            )
        except WorkerError as error:
            raise BrokerUnavailableError(f"searching stream {self._stream}: {error}") from error

    def _is_atomic(self, *, in_order: bool) -> bool:
        """Return whether the next call sends by atomic batches."""
        if self._mode == "pipeline" or not self._info.allow_atomic:
            return False
        refused_seconds_ago = asyncio.get_running_loop().time() - self._batch_failed_at
        return self._mode == "atomic" or (in_order and refused_seconds_ago > _NO_BATCH_SECONDS)

    async def _publish(
        self, messages: Sequence[OutboundMessage], deadline: float, *, in_order: bool
    ) -> list[PublishOutcome]:
        is_atomic = self._is_atomic(in_order=in_order)
        timeout_seconds = deadline - asyncio.get_running_loop().time()
        is_reported = False
        if self._info_is_stale and timeout_seconds > 0:
            is_reported = await self._refresh_info(min(timeout_seconds * _INFO_SHARE, _INFO_TIMEOUT_SECONDS))
        if self._connection.replies_denied:
            return [Unsent(self._connection.trouble)] * len(messages)
        if self._info.unusable_reason:
            self._info_is_stale = True
            return [Unsent(self._info.unusable_reason)] * len(messages)
        limit, last_seq = self.max_payload, self._last_seq
        ready = [encode(message, limit) for message in messages]
        if is_atomic:
            outcomes = await self._publish_in_order(ready, deadline)
        else:
            sent = iter(
                await self._pipeline([each for each in ready if isinstance(each, EncodedMessage)], deadline)
            )
            outcomes = [Rejected(each) if isinstance(each, str) else next(sent) for each in ready]
        self._note(outcomes, last_seq)
        if is_reported and not any(isinstance(outcome, Stored) for outcome in outcomes):
            silent = Unknown(TIMED_OUT)
            outcomes = [_STORES_NOTHING if outcome == silent else outcome for outcome in outcomes]
        return outcomes

    # --- sending

    async def _pipeline(self, messages: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        """Make one attempt for each message; ``deadline`` is in the loop's time."""
        sending = Sending(messages, self._read)
        await self._exchange(sending, split(messages, _TURN_MESSAGES), deadline)
        unknown, unsent = Unknown(sending.stopped), Unsent(sending.stopped or NOT_CONNECTED)
        return [
            outcome or (unknown if place < sending.sent else unsent)
            for place, outcome in enumerate(sending.outcomes)
        ]

    async def _publish_in_order(
        self, ready: Sequence[EncodedMessage | str], deadline: float
    ) -> list[PublishOutcome]:
        """Make one attempt for each message up to the first that is not stored, or cannot be sent."""
        good: list[EncodedMessage] = []
        for each in ready:
            if isinstance(each, str):
                break
            good.append(each)
        outcomes: list[PublishOutcome] = []
        try:
            async with asyncio.timeout_at(deadline):
                await self._in_order.acquire()
        except TimeoutError:
            return [Unsent("the deadline passed before its turn")] * len(ready)
        try:
            for chunk in split(good, _BATCH_MESSAGES, repeats_alone=True):
                outcomes += await self._chunk(chunk, deadline)
                if not all_stored(outcomes):
                    break
        finally:
            self._in_order.release()
        self._info_is_stale = self._info_is_stale or self._forbids_batches
        if len(good) < len(ready) and all_stored(outcomes):
            outcomes.append(Rejected(str(ready[len(good)])))
        return outcomes + [_HELD_BACK] * (len(ready) - len(outcomes))

    async def _chunk(self, chunk: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        """Send one batch; where it is not certainly stored, its messages one by one."""
        batch = await self._batch(chunk, deadline) if len(chunk) > 1 else _HELD_BACK
        if isinstance(batch, Stored):
            first = batch.seq - len(chunk) + 1
            return [Stored(batch.stream, first + place) for place in range(len(chunk))]
        outcomes: list[PublishOutcome] = []
        for message in chunk:
            outcomes += await self._pipeline([message], deadline)
            if not isinstance(outcomes[-1], Stored):
                break
        outcomes += [_HELD_BACK] * (len(chunk) - len(outcomes))
        if isinstance(batch, Unknown):
            return [batch if isinstance(outcome, Unsent) else outcome for outcome in outcomes]
        return outcomes

    async def _batch(self, messages: Sequence[EncodedMessage], deadline: float) -> Stored | Unknown | Unsent:
        """Send one batch: Stored names the last message's place, Unsent means that none can be stored.

        Only the last message commits the batch and requests a reply. Where a message has no room for the
        batch's headers, none is sent: the server would end the connection.
        """
        batch, last = uuid.uuid4().hex, len(messages)
        ends = [f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {n}\r\n" for n in range(1, last + 1)]
        ends[-1] += "Nats-Batch-Commit: 1\r\n"
        whole = [each.ending(f"{end}\r\n".encode()) for each, end in zip(messages, ends, strict=True)]
        if any(message.size > self.max_payload for message in whole):
            return Unsent("a message has no room for the headers of a batch")

        def read(data: bytes, status: str) -> PublishOutcome:
            if status:
                return Unknown(NO_STREAM)
            answer = parse(data)
            outcome = judge_ack(answer, self._stream, self._connection.domain)
            if isinstance(outcome, Stored):
                is_of_batch = answer.get("batch") == batch and answer.get("count") == last
                return outcome if is_of_batch else Unknown("the reply does not belong to the batch")
            error = answer.get("error") or {}
            self._forbids_batches = self._forbids_batches or number(error, "err_code") == NOT_ATOMIC
            is_bad_request = error.get("code") == _BAD_REQUEST
            return Unsent(outcome.reason) if is_bad_request else Unknown(outcome.reason)

        sending = Sending(whole, read, silent=last - 1)
        turns = (whole[start : start + _TURN_MESSAGES] for start in range(0, last, _TURN_MESSAGES))
        await self._exchange(sending, turns, deadline)
        if sending.sent < last:
            return Unsent(sending.stopped or NOT_CONNECTED)
        for outcome in sending.outcomes:
            if outcome is not None:  # the commit's, or that of a forbidden subject
                return outcome if isinstance(outcome, Stored | Unsent) else Unknown(outcome.reason)
        return Unknown(sending.stopped)

    async def _exchange(
        self, sending: Sending, turns: Iterable[Sequence[EncodedMessage]], deadline: float
    ) -> None:
        """Write messages turn by turn, and wait for the replies.

        A task that is cancelled while nats-py's publish blocks would continue as if nothing had happened. So
        a turn waits while nats-py's buffer is so full that a publish could block in it.
        """
        client, silent = self._connection.client, sending.silent
        with self._replies.replies_to(sending, deadline) as prefix:
            for turn in turns:
                await asyncio.sleep(0)
                while client.pending_data_size > _BUFFERED_BYTES_MAX and not sending.stopped:  # noqa: ASYNC110
                    await asyncio.sleep(_STALLED_SECONDS)  # no event tells
                if sending.stopped or not self._connection.is_connected:
                    break
                frames = [
                    frame(message, f"{prefix}{place}" if place >= silent else "")
                    for place, message in enumerate(turn, sending.sent)
                ]
                sending.sent += len(turn)
                await client.write(frames)
            await sending.wait()

    # --- duplicates, judged by the message that the stream has under their id
    #
    # Another message there rejects the event: its id is taken. So does a message that cannot be read any
    # more, at the first attempt of an event, which cannot have stored it. Of a replayed event, the copy of
    # its earlier lifecycle is dated: the stream stores the event again once that copy has left the window.

    async def _judge_duplicates(
        self, messages: Sequence[OutboundMessage], outcomes: list[PublishOutcome], deadline: float
    ) -> None:
        """Replace the outcomes of duplicates; one that is not read before the deadline is Unknown."""
        duplicates = [
            (place, messages[place], outcome)
            for place, outcome in enumerate(outcomes)
            if isinstance(outcome, Stored) and outcome.duplicate
        ]
        for place, _, stored in duplicates:
            outcomes[place] = Unknown(f"the stream has the id, at {stored.seq}, and was not read in time")
        turns = asyncio.Semaphore(_READS_AT_ONCE)
        now: datetime | None = None

        async def judge(place: int, message: OutboundMessage, stored: Stored) -> None:
            async with turns:
                try:
                    copy = await read_back(self._connection, self._stream, "", stored.seq)
                    outcomes[place] = _judged(message, stored, copy, now)
                except BrokerUnavailableError:
                    return
                except ContractError as error:
                    outcomes[place] = _without_copy(message, stored, str(error))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                if any(stored.seq == message.earlier_seq for _, message, stored in duplicates):
                    with contextlib.suppress(WorkerError):
                        now = (await stream_info(self._connection, self._stream)).now
                async with asyncio.TaskGroup() as group:
                    for duplicate in duplicates:
                        group.create_task(judge(*duplicate))

    # --- what is known of the stream

    def _note(self, outcomes: Sequence[PublishOutcome], last_seq: int) -> None:
        """Mark the stream's information stale if it may have changed; pause batches after a refusal."""
        stored = [outcome for outcome in outcomes if isinstance(outcome, Stored)]
        others = [outcome for outcome in outcomes if not isinstance(outcome, Stored)]
        if any(isinstance(outcome, Rejected | FailedTransiently | Unknown) for outcome in others):
            self._batch_failed_at = asyncio.get_running_loop().time()
            self._info_is_stale = self._info_is_stale or not stored
        new = [outcome.seq for outcome in stored if not outcome.duplicate]
        if new and min(new) <= last_seq:
            self._info_is_stale = True
        self._last_seq = max([self._last_seq, *new])

    async def _refresh_info(self, timeout_seconds: float) -> bool:
        """Request the information again; if that fails, return False, and the former one stays in use.

        The stream may have been deleted and created again, or restored to an earlier state.
        """
        known = self._last_seq
        try:
            info = await stream_info(self._connection, self._stream, timeout_seconds=timeout_seconds)
        except WorkerError:
            self._info = replace(self._info, unusable_reason="")  # a publish reports the present reason
            return False
        if info.created != self._info.created:
            self._last_seq = info.last_seq
            self._connection.emit("stream", f"stream {self._stream} was created anew at {info.created}")
        elif info.last_seq < known:
            self._last_seq = info.last_seq
            self._connection.emit(
                "stream",
                f"stream {self._stream} ends at {info.last_seq} and had acknowledged {known}: the server "
                "lost messages in between; `python -m sea_mq_worker pipeline reconcile` lists them",
            )
        if info.unusable_reason and not self._info.unusable_reason:
            self._connection.emit("stream", info.unusable_reason)
        self._info, self._info_read_at = info, asyncio.get_running_loop().time()
        self._forbids_batches = False
        self._info_is_stale = False
        return True

    def _on_event(self, event: str, _text: str) -> None:
        if event == "reconnected":
            self._info_is_stale = True


def all_stored(outcomes: Sequence[PublishOutcome]) -> bool:
    return all(isinstance(outcome, Stored) for outcome in outcomes)


def split(
    messages: Sequence[EncodedMessage], count_max: int, *, repeats_alone: bool = False
) -> Iterator[Sequence[EncodedMessage]]:
    """Split messages into parts that fit into nats-py's buffer.

    ``repeats_alone``: each repeat is a part, because a known id refuses the whole batch.
    """
    start, size = 0, 0
    for index, message in enumerate(messages):
        full = index - start == count_max or size + message.size > _TURN_BYTES_MAX
        alone = repeats_alone and (message.repeated or messages[index - 1].repeated)
        if index > start and (full or alone):
            yield messages[start:index]
            start, size = index, 0
        size += message.size
    if start < len(messages):
        yield messages[start:]


def frame(message: EncodedMessage, reply: str) -> bytes:
    """Encode HPUB: nats-py's own encoding, header by header, costs more than all the rest of a publish."""
    control = f"HPUB {message.subject} {reply} {len(message.head)} {message.size}\r\n".encode()
    return b"".join((control, message.head, message.payload, b"\r\n"))


def _judged(
    message: OutboundMessage, stored: Stored, copy: InboundMessage | None, now: datetime | None
) -> PublishOutcome:
    if copy is None:
        return _without_copy(message, stored, "it is gone")
    if not is_same_message(message, copy.subject, copy.payload, copy.headers):
        return Rejected(f"ID_TAKEN: the stream has another message under this id, at {stored.seq}")
    if now is None or stored.seq != message.earlier_seq:
        return stored
    return stored._replace(seconds_ago=max(0.0, (now - copy.stored_at).total_seconds()))


def _without_copy(message: OutboundMessage, stored: Stored, why: str) -> PublishOutcome:
    """Take a message that cannot be read for the event's own where an earlier attempt may have stored it."""
    if message.repeated:
        return stored
    return Rejected(
        f"ID_TAKEN: the stream knows this id from a message of another writer, at {stored.seq}: {why}"
    )
