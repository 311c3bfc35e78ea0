"""Acknowledgements: how a reply of the stream finds its message, and what it says.

All replies come through one wildcard subscription; a reply subject ends with the number of the call and the
place of the message. A reply to a call that has ended is dropped.
"""

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import nats.errors
from nats.aio.msg import Msg

from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.errors import is_number, number, parse, plain
from sea_mq_worker.nats.headers import EncodedMessage
from sea_mq_worker.nats.message import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown

TIMED_OUT = "the deadline passed without an acknowledgement"
_CONNECTION_ERRORS = (nats.errors.Error, OSError, UnicodeError)

ReadReply: TypeAlias = Callable[[bytes, str], PublishOutcome]
"""Judges a reply by its body and by its status, which is empty unless the server itself made the reply."""


class Sending:
    """The messages of one call: sent in order, answered in any order.

    Attributes:
        silent: how many of them, from the first, request no reply.
        sent: how many of them are sent, from the first.
        outcomes: by place; None: no reply yet.
        stopped: why no more replies will come; empty while they may.
    """

    def __init__(self, messages: Sequence[EncodedMessage], read: ReadReply, *, silent: int = 0) -> None:
        self.silent = silent
        self.sent = 0
        self.outcomes: list[PublishOutcome | None] = [None] * len(messages)
        self.stopped = ""
        self._messages = messages
        self._read = read
        self._answered = 0
        self._awaited = 0
        self._wake: asyncio.Future[None] | None = None

    def on_reply(self, place: str, data: bytes, status: str) -> None:
        if place.isdecimal() and (index := int(place)) < self.sent:
            self._settle(index, self._read(data, status))

    def deny(self, subject: str) -> None:
        """Settle what was sent to a forbidden subject, in lower case: the server does not reply to it."""
        reason = f"the worker has no permission to publish to {subject}; grant it"
        for index in range(self.sent):
            if self._messages[index].subject.lower() == subject:
                self._settle(index, Unknown(reason, answered=True, refused=True))

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason
        self._notify()

    async def wait(self) -> None:
        """Wait until all that requested a reply have one, or no more will come."""
        self._awaited = self.sent - self.silent
        while self._answered < self._awaited and not self.stopped:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _settle(self, index: int, outcome: PublishOutcome) -> None:
        if self.outcomes[index] is None:
            self.outcomes[index] = outcome
            self._answered += 1
            if self._answered >= self._awaited:
                self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class ReplyMux:
    """Passes each reply to the call that it belongs to."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._open: dict[str, Sending] = {}
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
    def replies_to(self, sending: Sending, deadline: float) -> Iterator[str]:
        """Yield the prefix of a call's reply subjects, and stop it at the deadline in the loop's time.

        An error of the connection ends the block and stops the call.
        """
        call, loop = str(next(self._numbers)), asyncio.get_running_loop()
        self._open[call] = sending
        if deadline <= loop.time():
            sending.stop(TIMED_OUT)
        timer = loop.call_at(deadline, sending.stop, TIMED_OUT)
        try:
            yield f"{self._inbox}.{call}."
        except _CONNECTION_ERRORS as error:
            sending.stop(plain(error))
        finally:
            timer.cancel()
            del self._open[call]

    def _on_body(self, subject: str, data: bytes, status: str = "") -> None:
        call, _, place = subject[self._skip :].partition(".")
        sending = self._open.get(call)
        if sending is not None:
            sending.on_reply(place, data, status)

    async def _on_reply(self, msg: Msg) -> None:
        """Handle a reply with headers."""
        status = (msg.headers or {}).get("Status", "unknown") if not msg.data else ""
        self._on_body(msg.subject, msg.data, status)

    def _on_event(self, event: str, text: str) -> None:
        for sending in list(self._open.values()):
            if event == "disconnected":
                sending.stop(f"the connection broke: {text}")
            elif event == "denied" and self._connection.replies_denied:
                sending.stop(self._connection.trouble)
            elif event == "denied":
                sending.deny(text)


# --- What a reply says.

NO_STREAM = "no stream takes the subject, or it has no leader now"
NOT_ATOMIC = 10174
"""Error of a stream that does not allow atomic batches."""
_NEVER = frozenset({10054, 10097, 10165, 10166, *range(10186, 10194), 10203, 10212, 10223, 10227})
"""Errors that the message itself causes: its size, headers too large, TTL, schedules, reserved headers."""
_NOT_NOW = frozenset({10070, 10071, 10164})
"""Errors of an expectation about the stream's last message."""
_NO_STORAGE = 10023
_SEQ_MAX = 2**63 - 1
"""Largest sequence that fits into a column of PostgreSQL; a stream that counts from 1 never reaches it."""


def judge_ack(answer: dict[str, Any], stream: str, domain: str = "") -> PublishOutcome:
    """Judge a parsed reply; a refusal for a reason other than the message itself is Unknown.

    An acknowledgement counts only if ``stream`` sent it; ``domain`` of its JetStream, empty for any.
    """
    if error := answer.get("error"):
        return _judge_error(error)
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


def _judge_error(error: dict[str, Any]) -> PublishOutcome:
    code = number(error, "err_code")
    text = f"{error.get('description', 'refused')} ({error.get('code', 0)}/{code})"
    if code == _NO_STORAGE:
        text += ": nats-server has used up its max_file_store or max_memory_store"
    if code in _NEVER:
        return Rejected(text)
    if code in _NOT_NOW:
        return FailedTransiently(text)
    return Unknown(text, answered=True, refused=True)


def ack_reader(stream: str, domain: str = "") -> ReadReply:
    """Return a reader of the acknowledgements of one stream, which parses no JSON for the usual form."""
    of_domain = f'"domain":{json.dumps(domain)},' if domain else ""
    start = re.escape(f'{{"stream":{json.dumps(stream)},{of_domain}"seq":'.encode())
    is_usual = re.compile(start + rb"\s*([1-9]\d{0,%d})\s*\}" % (len(str(_SEQ_MAX)) - 2)).fullmatch

    def read(data: bytes, status: str) -> PublishOutcome:
        if usual := is_usual(data):
            return Stored(stream, int(usual[1]))
        if status:
            reason = NO_STREAM if status == "503" else f"the server answered with status {status}"
            return Unknown(reason, answered=True)
        return judge_ack(parse(data), stream, domain)

    return read
