"""Port PORT-047-003 on NATS JetStream: publishes to one stream, in a mode that the stream allows."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.publish.acks import AckReader
from sea_mq_worker.adapters.nats.publish.atomic_batch import HELD_BACK, AtomicPublisher, all_stored
from sea_mq_worker.adapters.nats.publish.duplicates import judge_duplicates
from sea_mq_worker.adapters.nats.publish.pipelined import PipelinedPublisher
from sea_mq_worker.adapters.nats.publish.reply_mux import TIMED_OUT, ReplyMux
from sea_mq_worker.adapters.nats.publish.search import find_messages
from sea_mq_worker.adapters.nats.server_info import StreamInfo, stream_info
from sea_mq_worker.domain.encoding import EncodedMessage, encode
from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError, WorkerError
from sea_mq_worker.domain.headers import MSG_ID
from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.domain.outcomes import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown, Unsent
from sea_mq_worker.domain.stream_search import SearchedId, SearchResult

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
        replies = ReplyMux(connection)
        self._replies = replies
        self._pipeline = PipelinedPublisher(connection, replies, AckReader(stream, connection.domain))
        self._atomic = AtomicPublisher(connection, replies, self._pipeline, stream)
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
        sent = iter(await self._pipeline.send(good, deadline))
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
        outcomes = await self._atomic.send(good, deadline)
        self._info_is_stale = self._info_is_stale or self._atomic.disabled
        if bad and all_stored(outcomes):
            outcomes.append(Rejected(bad))
        return outcomes + [HELD_BACK] * (len(messages) - len(outcomes))

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
        self._atomic.disabled = False
        self._info_is_stale = False
        return True

    def _on_event(self, event: str, _text: str) -> None:
        if event == "reconnected":
            self._info_is_stale = True
