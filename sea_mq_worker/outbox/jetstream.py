"""Port PORT-047-003 on NATS JetStream: publishes to one stream, in a mode that the stream allows."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeAlias

from sea_mq_worker.errors import BrokerUnavailableError, ContractError, WorkerError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.errors import number, parse
from sea_mq_worker.nats.headers import MSG_ID, EncodedMessage, encode, is_same_message
from sea_mq_worker.nats.info import StreamInfo, stream_info
from sea_mq_worker.nats.message import (
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
from sea_mq_worker.nats.search import find_messages
from sea_mq_worker.nats.stored import read_back
from sea_mq_worker.nats.wire import (
    NO_STREAM,
    NOT_ATOMIC,
    NOT_CONNECTED,
    TIMED_OUT,
    TURN_MESSAGES,
    AckReader,
    PendingRequest,
    ReplyMux,
    frame,
    judge_ack,
    no_permission,
    split,
    wait_for_buffer,
)

# --- Pipelined publishing: sends without waiting, one acknowledgement per message; works on any server.

ReadAck: TypeAlias = Callable[[bytes, str], PublishOutcome]
"""Judges a reply by its body and its status."""


class InFlightBatch(PendingRequest):
    """The messages of one call: sent in order, acknowledged in any order.

    Attributes:
        sent: how many of them are sent, from the first.
    """

    def __init__(self, messages: Sequence[EncodedMessage], read: ReadAck) -> None:
        super().__init__()
        self._messages = messages
        self._read = read
        self._outcomes: list[PublishOutcome | None] = [None] * len(messages)
        self.sent = 0
        self._settled = 0

    def on_reply(self, token: str, data: bytes, status: str) -> None:
        """Record the reply to the message numbered ``token``."""
        if token.isdecimal() and (place := int(token)) < self.sent:
            self.settle(place, self._read(data, status))

    def deny(self, subject: str) -> None:
        """Settle the messages that were sent to a forbidden subject."""
        for index in range(self.sent):
            if self._messages[index].subject.lower() == subject:
                self.settle(index, Unknown(no_permission(subject), answered=True, refused=True))

    def settle(self, index: int, outcome: PublishOutcome) -> None:
        """Record the outcome of a message; the first outcome counts."""
        if self._outcomes[index] is None:
            self._outcomes[index] = outcome
            self._settled += 1
            if self._settled == self.sent:
                self.notify()

    async def wait_for_replies(self) -> None:
        """Wait until all sent messages have a reply, or the batch is stopped."""
        while self._settled < self.sent and not self.stopped:
            await self.change()

    def outcomes(self) -> list[PublishOutcome]:
        unknown, unsent = Unknown(self.stopped), Unsent(self.stopped or NOT_CONNECTED)
        return [
            outcome or (unknown if index < self.sent else unsent)
            for index, outcome in enumerate(self._outcomes)
        ]


# --- Publishing in order by atomic batches (server 2.12 and later): a chunk is stored whole, or not at all.
#
# The stored messages have consecutive sequences, and a known message id refuses the whole batch, so that one
# acknowledgement proves each message's place. Messages of a batch that is not certainly stored are sent
# again one by one, under the same ids. The first message that is not stored ends the call. For example,
# with four events:
#
#     batch A B C D   its acknowledgement does not arrive: all four are possibly published
#     send A again    Stored: the stream knows the id, because the batch had stored A
#     send B again    FailedTransiently: the call ends
#     C, D            Unknown, because the batch sent them; Unsent if it had not
#
# With ``sync_interval: always`` and one replica, the server flushes once per batch instead of once per
# message.

_BATCH_MESSAGES = 1000
"""Most messages that the server takes in a batch."""
_BAD_REQUEST = 400
HELD_BACK = Unsent("held back behind a message that was not stored")


class _SentBatch(PendingRequest):
    """A batch in flight, with one reply, to its last message."""

    def __init__(self, messages: Sequence[EncodedMessage]) -> None:
        super().__init__()
        self._messages = messages
        self.answer: dict[str, Any] = {}

    def on_reply(self, token: str, data: bytes, status: str) -> None:  # noqa: ARG002 - there is one reply
        """Read the reply; a status means that no stream takes the subject."""
        if status:
            self.stop(NO_STREAM)
        else:
            self.answer = self.answer or parse(data)
            self.notify()

    def deny(self, subject: str) -> None:
        """Stop the batch if one of its subjects is forbidden."""
        if any(message.subject.lower() == subject for message in self._messages):
            self.stop(no_permission(subject))


def all_stored(outcomes: Sequence[PublishOutcome]) -> bool:
    return all(isinstance(outcome, Stored) for outcome in outcomes)


def _sendings(messages: Sequence[EncodedMessage], batch: str, reply: str) -> list[tuple[EncodedMessage, str]]:
    """Add the batch's headers; only the last message commits the batch, and requests a reply."""
    last = len(messages)
    ends = [f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {place}\r\n" for place in range(1, last + 1)]
    ends[-1] += "Nats-Batch-Commit: 1\r\n"
    return [
        (message.ending(f"{end}\r\n".encode()), "" if place < last else reply)
        for place, (message, end) in enumerate(zip(messages, ends, strict=True), start=1)
    ]


# --- Judges events that the stream dropped as duplicates, by the message that it has under their id.
#
# Another message there rejects the event: its id is taken. So does a message that cannot be read any more,
# at the first attempt of an event, which cannot have stored it. Of a replayed event, the copy of its earlier
# lifecycle is dated: the stream stores the event again once that copy has left the deduplication window.

_AT_ONCE = 32


async def judge_duplicates(
    connection: NatsConnection,
    stream: str,
    messages: Sequence[OutboundMessage],
    outcomes: Sequence[PublishOutcome],
    deadline: float,
) -> list[PublishOutcome]:
    """Return the outcomes; a duplicate that the server does not return before the deadline is Unknown."""
    judged = list(outcomes)
    duplicates = [
        (index, message, outcome)
        for index, (message, outcome) in enumerate(zip(messages, outcomes, strict=True))
        if isinstance(outcome, Stored) and outcome.duplicate
    ]
    if not duplicates:
        return judged
    for index, _, outcome in duplicates:
        judged[index] = Unknown(f"the stream has the id, at {outcome.seq}, and was not read in time")
    turns = asyncio.Semaphore(_AT_ONCE)
    now: datetime | None = None

    async def judge(index: int, message: OutboundMessage, outcome: Stored) -> None:
        async with turns:
            try:
                copy = await read_back(connection, stream, "", outcome.seq)
                judged[index] = _judged(message, outcome, copy, now)
            except BrokerUnavailableError:
                return
            except ContractError as error:
                judged[index] = _without_copy(message, outcome, str(error))

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            if any(outcome.seq == message.earlier_seq for _, message, outcome in duplicates):
                with contextlib.suppress(WorkerError):
                    now = (await stream_info(connection, stream)).now
            async with asyncio.TaskGroup() as group:
                for duplicate in duplicates:
                    group.create_task(judge(*duplicate))
    return judged


def _judged(
    message: OutboundMessage, outcome: Stored, copy: InboundMessage | None, now: datetime | None
) -> PublishOutcome:
    if copy is None:
        return _without_copy(message, outcome, "it is gone")
    if not is_same_message(message, copy.subject, copy.payload, copy.headers):
        return Rejected(f"ID_TAKEN: the stream has another message under this id, at {outcome.seq}")
    if now is None or outcome.seq != message.earlier_seq:
        return outcome
    return outcome._replace(seconds_ago=max(0.0, (now - copy.stored_at).total_seconds()))


def _without_copy(message: OutboundMessage, outcome: Stored, why: str) -> PublishOutcome:
    """Take a message that cannot be read for the event's own where an earlier attempt may have stored it."""
    if message.repeated:
        return outcome
    return Rejected(
        f"ID_TAKEN: the stream knows this id from a message of another writer, at {outcome.seq}: {why}"
    )


Mode: TypeAlias = Literal["auto", "pipeline", "atomic"]

_NO_BATCH_SECONDS = 10.0
"""Seconds without atomic batches in mode ``auto`` after the stream refused a message."""
_INFO_TIMEOUT_SECONDS = 2.0
_INFO_FRESH_SECONDS = 1.0
"""Age up to which the stream's information counts as present: repeats may be in every claim."""
_STORES_NOTHING = Unknown(
    "nats-server reports the stream and acknowledges no message: its log has the reason, such as a full disk"
)
_INFO_SHARE = 0.25
"""Share of a deadline that the request for the stream's information may take."""


class NatsJetStreamPublisher:
    """Publishes to one stream over one connection; JetStreamPublisher's rules hold in every mode.

    Args:
        stream: the only stream whose acknowledgements count.
        mode: ``pipeline`` works on any server; ``atomic`` needs ``allow_atomic`` on the stream, and keeps
            the order of every batch; ``auto`` is ``atomic`` for a batch that has to keep its order, while the
            stream allows it and refuses nothing, else ``pipeline``. There is no mode for the server's fast
            ingest: it skips a known id silently, so that no acknowledgement proves which messages are stored.
        publish_timeout_seconds: deadline of a single ``publish``.
        find_timeout_seconds: time limit of a ``find``.
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
        self._read = AckReader(stream, connection.domain)
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
        """See JetStreamPublisher; it can change from batch to batch."""
        return self._is_atomic(in_order=True)

    @property
    def duplicate_window_seconds(self) -> float:
        return self._info.duplicate_window_seconds

    async def read_duplicate_window(self) -> float:
        is_fresh = asyncio.get_running_loop().time() - self._info_read_at <= _INFO_FRESH_SECONDS
        is_known = is_fresh or await self._refresh_info(_INFO_TIMEOUT_SECONDS)
        return self.duplicate_window_seconds if is_known else 0.0

    @property
    def max_payload(self) -> int:
        return self._connection.client.max_payload

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        message = OutboundMessage(
            id=headers.get(MSG_ID, ""), subject=subject, payload=payload, headers=headers
        )
        deadline = asyncio.get_running_loop().time() + self._publish_timeout_seconds
        return (await self._send([message], deadline, in_order=False))[0]

    async def publish_batch(
        self, messages: Sequence[OutboundMessage], *, timeout_seconds: float, in_order: bool = False
    ) -> Sequence[PublishOutcome]:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        outcomes = await self._send(messages, deadline, in_order=in_order)
        return await judge_duplicates(self._connection, self._stream, messages, outcomes, deadline)

    async def _send(
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
        limit = self.max_payload
        ready = [encode(message, limit) for message in messages]
        known = self._last_seq
        outcomes = await (self._publish_in_order if is_atomic else self._publish_each)(ready, deadline)
        self._update_state(outcomes, known)
        if is_reported and not any(isinstance(outcome, Stored) for outcome in outcomes):
            silent = Unknown(TIMED_OUT)
            outcomes = [_STORES_NOTHING if outcome == silent else outcome for outcome in outcomes]
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
        """Return whether the next batch is an atomic one."""
        if self._mode == "pipeline" or not self._info.allow_atomic:
            return False
        refused_seconds_ago = asyncio.get_running_loop().time() - self._batch_failed_at
        return self._mode == "atomic" or (in_order and refused_seconds_ago > _NO_BATCH_SECONDS)

    async def _publish_each(
        self, messages: Sequence[EncodedMessage | str], deadline: float
    ) -> list[PublishOutcome]:
        good = [message for message in messages if isinstance(message, EncodedMessage)]
        sent = iter(await self._send_each(good, deadline))
        return [Rejected(each) if isinstance(each, str) else next(sent) for each in messages]

    async def _publish_in_order(
        self, messages: Sequence[EncodedMessage | str], deadline: float
    ) -> list[PublishOutcome]:
        """Hold back the messages after one that cannot be sent, as after one that is not stored."""
        good: list[EncodedMessage] = []
        bad = ""
        for message in messages:
            if isinstance(message, str):
                bad = message
                break
            good.append(message)
        outcomes = await self._send_in_order(good, deadline)
        self._info_is_stale = self._info_is_stale or self._forbids_batches
        if bad and all_stored(outcomes):
            outcomes.append(Rejected(bad))
        return outcomes + [HELD_BACK] * (len(messages) - len(outcomes))

    # --- one acknowledgement for each message

    async def _send_each(self, messages: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        """Make one attempt for each message; ``deadline`` is in the loop's time."""
        batch = InFlightBatch(messages, self._read)
        with self._replies.replies_to(batch, deadline) as prefix:
            for turn in split(messages, TURN_MESSAGES):
                await wait_for_buffer(self._connection, batch)
                if batch.stopped or not self._connection.is_connected:
                    break
                frames = [
                    frame(message, f"{prefix}{place}") for place, message in enumerate(turn, batch.sent)
                ]
                batch.sent += len(turn)
                await self._connection.client.write(frames)
            await batch.wait_for_replies()
        return batch.outcomes()

    # --- one acknowledgement for each batch

    async def _send_in_order(
        self, messages: Sequence[EncodedMessage], deadline: float
    ) -> list[PublishOutcome]:
        """Make one attempt for each message up to the first that is not stored."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._in_order.acquire()
        except TimeoutError:
            return [Unsent("the deadline passed before its turn")] * len(messages)
        try:
            outcomes: list[PublishOutcome] = []
            # Among others, a known id refuses the whole batch.
            for chunk in split(messages, _BATCH_MESSAGES, repeats_alone=True):
                outcomes += await self._chunk(chunk, deadline)
                if not all_stored(outcomes):
                    break
        finally:
            self._in_order.release()
        return outcomes + [HELD_BACK] * (len(messages) - len(outcomes))

    async def _chunk(self, chunk: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        if len(chunk) == 1:
            return await self._one_by_one(chunk, deadline)
        outcome = await self._batch(chunk, deadline)
        if isinstance(outcome, Stored):
            first = outcome.seq - len(chunk) + 1
            return [Stored(outcome.stream, first + place) for place in range(len(chunk))]
        rest = await self._one_by_one(chunk, deadline)
        if isinstance(outcome, Unsent):
            return rest
        return [outcome if isinstance(each, Unsent) else each for each in rest]

    async def _one_by_one(self, messages: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        outcomes: list[PublishOutcome] = []
        for message in messages:
            outcomes += await self._send_each([message], deadline)
            if not isinstance(outcomes[-1], Stored):
                break
        return outcomes + [HELD_BACK] * (len(messages) - len(outcomes))

    async def _batch(self, messages: Sequence[EncodedMessage], deadline: float) -> Stored | Unknown | Unsent:
        """Send one batch: Stored names the last message's place, Unsent means that none can be stored."""
        batch, sent_batch = uuid.uuid4().hex, _SentBatch(messages)
        committed = False
        with self._replies.replies_to(sent_batch, deadline) as prefix:
            committed = await self._commit(_sendings(messages, batch, f"{prefix}0"), sent_batch)
            while committed and not sent_batch.answer and not sent_batch.stopped:
                await sent_batch.change()
        if not committed:
            return Unsent(sent_batch.stopped or NOT_CONNECTED)
        answer = sent_batch.answer
        outcome = judge_ack(answer, self._stream, self._connection.domain)
        if isinstance(outcome, Stored):
            if answer.get("batch") == batch and answer.get("count") == len(messages):
                return outcome
            return Unknown("the reply does not belong to the batch")
        error = answer.get("error") or {}
        self._forbids_batches = self._forbids_batches or number(error, "err_code") in NOT_ATOMIC
        if error.get("code") == _BAD_REQUEST:
            return Unsent(outcome.reason)
        return Unknown(sent_batch.stopped or outcome.reason)

    async def _commit(self, sendings: Sequence[tuple[EncodedMessage, str]], sent_batch: _SentBatch) -> bool:
        """Send all messages; return whether the last one, which commits the batch, was sent.

        Where a message has no room for the batch's headers, send none: the server would end the connection.
        """
        if any(message.size > self._connection.client.max_payload for message, _ in sendings):
            return False
        for start in range(0, len(sendings), TURN_MESSAGES):
            await wait_for_buffer(self._connection, sent_batch)
            if sent_batch.stopped or not self._connection.is_connected:
                return False
            turn = sendings[start : start + TURN_MESSAGES]
            await self._connection.client.write([frame(*sending) for sending in turn])
        return True

    # --- what is known of the stream

    def _update_state(self, outcomes: Sequence[PublishOutcome], known: int) -> None:
        """Mark the stream's information stale if it may have changed; pause batches after a refusal."""
        stored = [outcome for outcome in outcomes if isinstance(outcome, Stored)]
        others = [outcome for outcome in outcomes if not isinstance(outcome, Stored)]
        if any(isinstance(outcome, Rejected | FailedTransiently | Unknown) for outcome in others):
            self._batch_failed_at = asyncio.get_running_loop().time()
            self._info_is_stale = self._info_is_stale or not stored
        new = [outcome.seq for outcome in stored if not outcome.duplicate]
        if new and min(new) <= known:
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
