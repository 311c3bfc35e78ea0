"""Messages to a stream and from it, what became of a publish, and the search for earlier copies.

Each side of the broker has one form: ``OutboundMessage`` is what a publisher takes, ``InboundMessage`` what
a consumer or a read of the stream gives. The unions are closed: every ``match`` on one ends with
``assert_never``, so a new outcome is a type error until each loop decides on it. What nearly every event
needs is a tuple, created in half the time of a frozen dataclass.
"""

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

_SHORT_TOKENS = 9
"""Tokens of a delivery's reply subject without domain and account."""
_HEADER_BYTES = 100
"""Bytes of a header in memory besides its text."""


class OutboundMessage(NamedTuple):
    """A message to publish."""

    id: str
    """``Nats-Msg-Id``: the stream drops a repeat of it inside the deduplication window."""
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    repeated: bool = False
    """An earlier attempt or lifecycle may have stored it, so it needs an acknowledgement of its own."""
    waited_seconds: float = 0.0
    """Seconds in the outbox, from creation to claim; 0 for messages from elsewhere."""
    earlier_seq: int = 0
    """Stream sequence of an earlier lifecycle's copy, which does not count; 0: no copy."""


class InboundMessage(NamedTuple):
    """A stored message; deliveries of it are equal in everything but ``deliveries`` and ``reply``."""

    stream: str
    seq: int
    """Stream sequence."""
    consumer: str
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    stored_at: datetime
    """When the stream stored it, by the server's clock."""
    deliveries: int
    """Number of deliveries by the server; only a hint, because a restart of the server can lower it."""
    reply: str
    """Subject for acknowledgements of this delivery; empty: it was read, and not delivered."""

    @property
    def was_delivered(self) -> bool:
        """Whether the consumer delivered it; else it was read from the stream."""
        return bool(self.reply)

    @property
    def size(self) -> int:
        """The bytes that body and headers take in memory: 64 KB of short headers become a megabyte."""
        headers = self.headers
        texts = sum(map(len, headers)) + sum(map(len, headers.values()))
        return len(self.payload) + texts + _HEADER_BYTES * len(headers)


# --- What became of a publish.


def ack_tokens(reply: str) -> list[str]:
    """Return what a delivery's reply subject holds; empty for a status, which has none.

    ``$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<ns>.<pending>``, or with domain
    and account before the stream and a token at the end.
    """
    tokens = reply.split(".")
    first = 2 if len(tokens) == _SHORT_TOKENS else 4
    return tokens[first : first + 7]


def stored(
    message: Mapping[str, Any], *, stream: str, consumer: str, deliveries: int, reply: str = ""
) -> InboundMessage:
    """Decode a stored message from STREAM.MSG.GET as if it had been delivered.

    Of headers of one name the last counts, as nats-py reads those of a delivery.
    """
    block = base64.b64decode(message.get("hdrs", ""))
    parted = (line.partition(b":") for line in block.split(b"\r\n")[1:])
    headers = {
        name.strip().decode("ascii", "replace"): value.strip().decode("utf-8", "replace")
        for name, colon, value in parted
        if colon
    }
    return InboundMessage(
        stream=stream,
        seq=message["seq"],
        consumer=consumer,
        subject=message["subject"],
        payload=base64.b64decode(message.get("data", "")),
        headers=headers,
        stored_at=datetime.fromisoformat(message["time"]),
        deliveries=deliveries,
        reply=reply,
    )


def size_of(messages: Iterable[InboundMessage | None]) -> int:
    """Return the bytes of all messages."""
    return sum(message.size for message in messages if message is not None)


class Stored(NamedTuple):
    """The stream has it. ``duplicate``: it already knew the id, so ``seq`` is an earlier copy's.

    ``seconds_ago``: how old that copy is, where it is the one of an earlier lifecycle and that is known.
    """

    stream: str
    seq: int
    duplicate: bool = False
    seconds_ago: float | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """This message can never be stored as it is (too large, a bad header): permanent."""

    reason: str


@dataclass(frozen=True, slots=True)
class FailedTransiently:
    """The broker refused this message now but may accept it later: transient, costs a failure."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """No response, or an unclear one: possibly published. Retry under the same id; costs no failure.

    ``answered``: the server did respond, so the link works and another message may be stored.
    ``refused``: the stream or a right is in the way, and only a message that is stored proves the end of it.
    """

    reason: str
    answered: bool = False
    refused: bool = False


NOT_CONNECTED = "not connected to NATS"
"""Reason of an Unsent; a circuit that opened for it closes as soon as there is a connection."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """It was not sent: the connection was down or the deadline had passed before its turn."""

    reason: str


PublishOutcome: TypeAlias = Stored | Rejected | FailedTransiently | Unknown | Unsent


# --- Search for copies that may be outside the stream's deduplication window.


class SearchProgress(NamedTuple):
    """A search that has not found its message; a later search continues from here.

    Sequences refer to the stream created at ``created``.
    """

    created: str
    through: int
    """The message is not at or below this sequence."""
    until: int
    """Last sequence of the search; later messages were stored after the search began."""

    @property
    def is_over(self) -> bool:
        """Whether the search is complete: the stream has no such message."""
        return self.left == 0

    @property
    def left(self) -> int:
        """Number of sequences still to be searched."""
        return max(0, self.until - self.through)


class SearchedId(NamedTuple):
    """A message to search for."""

    id: str
    since_seconds: float
    """Maximum age of the stored message, in seconds."""
    subject: str = ""
    """Subject of the message; empty: any."""
    other_than: int = 0
    """Sequence of a copy that does not count."""
    looked: SearchProgress | None = None
    """Progress of an earlier search."""
    message: OutboundMessage | None = None
    """The message itself: another writer's message under its id does not count."""


SearchResult: TypeAlias = Stored | SearchProgress

_SLACK_SECONDS = 60.0
"""Time before the first attempt at which a search starts, against clock differences."""
_SAFETY_FACTOR = 0.8


def may_be_outside_window(seconds_ago: float, *, window_seconds: float, sending_seconds: float = 0.0) -> bool:
    """Return whether the stream may have forgotten an id by the time it is published again.

    ``seconds_ago`` counts since the first attempt: 0 where this is the first, below 0 where it is unknown.
    ``window_seconds`` is the deduplication window, 0 where it is unknown; ``sending_seconds`` the longest
    time until the repeat reaches the stream.
    """
    is_old = seconds_ago + sending_seconds > window_seconds * _SAFETY_FACTOR
    return seconds_ago < 0 or (is_old and seconds_ago > 0)


def search_seconds(seconds_ago: float) -> float:
    """Return how far back to search for an attempt: to the stream's first message where that is unknown."""
    return seconds_ago + _SLACK_SECONDS if seconds_ago >= 0 else math.inf
