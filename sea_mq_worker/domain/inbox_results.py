"""Results of recording a message in the inbox (CMD-051): leased, or the reason why not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, assert_never

LEASE_SECONDS = 60.0
"""Length of a lease that does not say how long."""


class InboxMessage(NamedTuple):
    """A received message as the inbox records it (SDS-047 2.2); a tuple, as one is made for every message.

    An empty or zero field means that the value is unknown. A row without a content hash fits any content.
    """

    message_id: str
    subject: str
    consumer: str = ""
    stream: str = ""
    stream_seq: int = 0
    content_hash: bytes = b""
    reply: str = ""
    """Reply subject of the delivery; empty for a message that was read and not delivered."""


class AbandonedDelivery(NamedTuple):
    """A leased delivery whose worker has ended; ``attempts`` includes the one that ended with it."""

    stream: str
    consumer: str
    reply: str
    attempts: int


class Lease(NamedTuple):
    """The right to handle one message until it ends; ``token`` fences every later write."""

    message_id: str
    token: str


class Leased(NamedTuple):
    """This worker has the lease and must handle the message.

    Attributes:
        attempts: this one included.
        dead_letter_begun_seconds_ago: since an earlier attempt began to dead-letter it, of which nobody
            knows whether it reached the stream; 0 where none did, below 0 after the database's clock was
            set back.
    """

    lease: Lease
    attempts: int
    dead_letter_begun_seconds_ago: float = 0.0


@dataclass(frozen=True, slots=True)
class AlreadySettled:
    """Processed or dead-lettered before: acknowledge without calling the handler.

    ``consumer``: the durable that brought it then, where that is known.
    """

    consumer: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LeasedElsewhere:
    """Another worker handles it now, or it came twice in one batch.

    ``attempts``: how often it was taken for handling so far, where that is known.
    """

    attempts: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ContentConflict:
    """The id is known with another content."""


@dataclass(frozen=True, slots=True)
class Unwritable:
    """PostgreSQL refuses to record it, for example by a trigger: it is delivered again later."""


Receipt: TypeAlias = Leased | AlreadySettled | LeasedElsewhere | ContentConflict | Unwritable


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedHandling:
    """A handling that ended without an effect; ``counted``: it costs the message an attempt."""

    lease: Lease
    error: str
    counted: bool = True


def deduplicate(entries: Sequence[InboxMessage]) -> list[InboxMessage]:
    """Leave out the entries whose message id came before in the batch."""
    first: dict[str, InboxMessage] = {}
    for entry in entries:
        first.setdefault(entry.message_id, entry)
    return list(first.values())


def expand_duplicates(entries: Sequence[InboxMessage], receipts: Mapping[str, Receipt]) -> list[Receipt]:
    """Make one receipt for each entry from those that the first of each message id got."""
    contents: dict[str, bytes] = {}
    answers = []
    for entry in entries:
        receipt = receipts[entry.message_id]
        if entry.message_id in contents:
            receipt = _repeated(receipt, same_content=contents[entry.message_id] == entry.content_hash)
        contents.setdefault(entry.message_id, entry.content_hash)
        answers.append(receipt)
    return answers


def _repeated(first: Receipt, *, same_content: bool) -> Receipt:
    """Return LeasedElsewhere for a repeat that is undecided until the first is settled; it comes again."""
    match first:
        case Leased():
            return LeasedElsewhere() if same_content else ContentConflict()
        case AlreadySettled() | ContentConflict():
            return first if same_content else LeasedElsewhere()
        case LeasedElsewhere() | Unwritable():
            return first
        case _:
            assert_never(first)
