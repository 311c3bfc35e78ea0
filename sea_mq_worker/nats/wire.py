"""Publishes on the wire: frames, replies and their acknowledgements; keeps nats-py's buffer below its limit.

nats-py's own encoding, header by header, costs more than all the rest of a publish.
"""

import asyncio
import itertools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from sea_mq_worker.nats.connection import PENDING_BYTES_MAX, NatsConnection
from sea_mq_worker.nats.errors import is_number, number, parse, plain
from sea_mq_worker.nats.headers import EncodedMessage
from sea_mq_worker.nats.message import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown

# --- Routes the replies of all publishes through one wildcard subscription.

NOT_CONNECTED = "not connected to NATS"
TIMED_OUT = "the deadline passed without an acknowledgement"
_CONNECTION_ERRORS = (nats.errors.Error, OSError, UnicodeError)


class PendingRequest(ABC):
    """A sent request that waits for replies.

    Attributes:
        stopped: why the request no longer waits for replies; empty while it does.
    """

    def __init__(self) -> None:
        self.stopped = ""
        self._wake: asyncio.Future[None] | None = None

    @abstractmethod
    def on_reply(self, token: str, data: bytes, status: str) -> None:
        """Handle a reply; it must not raise.

        Args:
            token: the part of the reply's subject after the request's prefix.
            data: the body.
            status: of a reply without a body that the server made itself; else empty.
        """

    @abstractmethod
    def deny(self, subject: str) -> None:
        """Handle a permission error for a subject (in lower case); the server will not reply for it."""

    def stop(self, reason: str) -> None:
        """Stop waiting: no more replies will come."""
        self.stopped = self.stopped or reason
        self.notify()

    async def change(self) -> None:
        """Wait for the next notification."""
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake

    def notify(self) -> None:
        """Note that a reply or the stop has changed the request."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def no_permission(subject: str) -> str:
    """Return the reason text for a subject that the worker may not publish to."""
    return f"the worker has no permission to publish to {subject}; grant it"


class ReplyMux:
    """Passes each reply to its request; a reply to a request that has ended is dropped."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._open: dict[str, PendingRequest] = {}
        self._numbers = itertools.count(1)
        self._inbox = ""
        self._skip = 0

    async def start(self) -> None:
        """Subscribe once; nats-py subscribes again after each reconnect."""
        client = self._connection.client
        self._inbox = client.new_inbox()
        self._skip = len(self._inbox) + 1
        self._connection.listen(self._on_event)
        client.pass_on(f"{self._inbox}.", self._on_body)
        await client.subscribe(f"{self._inbox}.>", cb=self._on_reply, pending_bytes_limit=0)

    @contextmanager
    def replies_to(self, request: PendingRequest, deadline: float) -> Iterator[str]:
        """Yield the prefix of a request's reply subjects, and pass its replies to it.

        An error of the connection ends the block and stops the request. The request also stops at the
        deadline in the loop's time, or at once if that has passed.
        """
        number, loop = str(next(self._numbers)), asyncio.get_running_loop()
        self._open[number] = request
        if deadline <= loop.time():
            request.stop(TIMED_OUT)
        timer = loop.call_at(deadline, request.stop, TIMED_OUT)
        try:
            yield f"{self._inbox}.{number}."
        except _CONNECTION_ERRORS as error:
            request.stop(plain(error))
        finally:
            timer.cancel()
            del self._open[number]

    def _on_body(self, subject: str, data: bytes, status: str = "") -> None:
        number, _, token = subject[self._skip :].partition(".")
        request = self._open.get(number)
        if request is not None:
            request.on_reply(token, data, status)

    async def _on_reply(self, msg: Msg) -> None:
        """Handle a reply with headers."""
        status = (msg.headers or {}).get("Status", "unknown") if not msg.data else ""
        self._on_body(msg.subject, msg.data, status)

    def _on_event(self, event: str, text: str) -> None:
        for request in list(self._open.values()):
            if event == "disconnected":
                request.stop(f"the connection broke: {text}")
            elif event == "denied" and self._connection.replies_denied:
                request.stop(self._connection.trouble)
            elif event == "denied":
                request.deny(text)


TURN_MESSAGES = 256
"""Messages per write, so that other tasks get to run in between."""
_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of messages that are split off together; one larger message comes alone."""
_BUFFERED_BYTES_MAX = PENDING_BYTES_MAX - _BYTES_MAX
_STALLED_SECONDS = 0.02


def split(
    messages: Sequence[EncodedMessage], count_max: int, *, repeats_alone: bool = False
) -> Iterator[Sequence[EncodedMessage]]:
    """Split messages into parts that fit into nats-py's buffer; ``repeats_alone``: each repeat is a part."""
    start, size = 0, 0
    for index, message in enumerate(messages):
        full = index - start == count_max or size + message.size > _BYTES_MAX
        alone = repeats_alone and (message.repeated or messages[index - 1].repeated)
        if index > start and (full or alone):
            yield messages[start:index]
            start, size = index, 0
        size += message.size
    if start < len(messages):
        yield messages[start:]


def frame(message: EncodedMessage, reply: str) -> bytes:
    """Encode HPUB: control line, headers, body."""
    control = f"HPUB {message.subject} {reply} {len(message.head)} {message.size}\r\n".encode()
    return b"".join((control, message.head, message.payload, b"\r\n"))


async def wait_for_buffer(connection: NatsConnection, request: PendingRequest) -> None:
    """Yield to the loop, and wait while nats-py's buffer is so full that a publish could block in it.

    A task that is cancelled while nats-py's publish blocks would continue as if nothing had happened.
    """
    await asyncio.sleep(0)
    client = connection.client
    while client.pending_data_size > _BUFFERED_BYTES_MAX and not request.stopped:  # noqa: ASYNC110, no event tells
        await asyncio.sleep(_STALLED_SECONDS)


# --- Judges a stream's reply to a publish; the publishers handle a reply that does not come.

NO_STREAM = "no stream takes the subject, or it has no leader now"
NOT_ATOMIC = frozenset({10174})
"""Errors of a stream that does not allow atomic batches."""

_NEVER = frozenset({10054, 10097, 10165, 10166, *range(10186, 10194), 10203, 10212, 10223, 10227})
"""Errors that the message itself causes: its size, headers too large, TTL, schedules, reserved headers."""
_NO_STORAGE = 10023
_SEQ_MAX = 2**63 - 1
"""Largest sequence that fits into a column of PostgreSQL; a stream that counts from 1 never reaches it."""
_SEQ_DIGITS = len(str(_SEQ_MAX))
_NOT_NOW = frozenset({10070, 10071, 10164})
"""Errors of an expectation about the stream's last message."""


def judge_ack(answer: dict[str, Any], stream: str, domain: str = "") -> PublishOutcome:
    """Judge a parsed reply; a refusal for a reason other than the message itself is Unknown.

    An acknowledgement counts only if ``stream`` sent it; ``domain`` of its JetStream, empty for any.
    """
    if error := answer.get("error"):
        return judge_error(error)
    named, seq = answer.get("stream"), answer.get("seq")
    if not is_number(seq) or not 1 <= seq <= _SEQ_MAX:
        return Unknown("the reply was no acknowledgement of a stream", answered=True)
    if named != stream:
        return Unknown(
            f"acknowledged by stream {named!r} instead of {stream!r}: another stream takes the subject; "
            "run `python -m sea_mq_worker streams check`",
            answered=True,
            refused=True,
        )
    if domain and answer.get("domain") != domain:
        return Unknown(
            f"acknowledged by the JetStream domain {answer.get('domain', '')!r} instead of {domain!r}: "
            "a stream of the same name is there, too",
            answered=True,
            refused=True,
        )
    return Stored(stream, seq, duplicate=answer.get("duplicate") is True)


def judge_error(error: dict[str, Any]) -> PublishOutcome:
    code = number(error, "err_code")
    text = f"{error.get('description', 'refused')} ({error.get('code', 0)}/{code})"
    if code == _NO_STORAGE:
        text += ": nats-server has used up its max_file_store or max_memory_store"
    if code in _NEVER:
        return Rejected(text)
    if code in _NOT_NOW:
        return FailedTransiently(text)
    return Unknown(text, answered=True, refused=True)


class AckReader:
    """Reads acknowledgements of one stream, the usual form without a JSON parser."""

    def __init__(self, stream: str, domain: str = "") -> None:
        self.stream = stream
        self._domain = domain
        of_domain = f'"domain":{json.dumps(domain)},' if domain else ""
        start = re.escape(f'{{"stream":{json.dumps(stream)},{of_domain}"seq":'.encode())
        self._usual = re.compile(start + rb"\s*([1-9]\d{0,%d})\s*\}" % (_SEQ_DIGITS - 2)).fullmatch

    def __call__(self, data: bytes, status: str) -> PublishOutcome:
        """Read the reply to one publish; a reply with a status comes from the server, not from the stream."""
        if usual := self._usual(data):
            return Stored(self.stream, int(usual[1]))
        if status:
            reason = NO_STREAM if status == "503" else f"the server answered with status {status}"
            return Unknown(reason, answered=True)
        return judge_ack(parse(data), self.stream, self._domain)
