"""Port of the page: queries and changes for an operator with the token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from sea_mq_worker.operators.records import DeadEvent, DeadLetterSummary, OperatorAction

_ItemT_co = TypeVar("_ItemT_co", covariant=True)


class OperatorBusyError(Exception):
    """Another request is running; retry in a moment."""


class OperatorTimeoutError(Exception):
    """The request took too long and was cancelled; its change may or may not have happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters of one reason and original subject, with sequences after ``after`` up to ``last``."""

    reason: str
    subject: str
    after: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCount:
    """Size of a group.

    Attributes:
        detail: its first letter's.
        last: its highest sequence.
        can_be_handled: whether a redrive would call the handler for at least one of them.
    """

    reason: str
    subject: str
    detail: str
    oldest_at: datetime
    count: int
    last: int
    can_be_handled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage(Generic[_ItemT_co]):
    """One page of a list; ``more``: there is a next page."""

    items: Sequence[_ItemT_co]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A payload as text, or in base64 if it is no text; ``payload_cut``: only its beginning."""

    payload: str
    payload_encoding: str
    payload_bytes: int
    payload_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDetail:
    """One event or dead letter: its fields by name, and its payload."""

    fields: Mapping[str, object]
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupResult:
    """Location of an event or message.

    Attributes:
        answer: sentences, the most important first.
        steps: what happened to it, the earliest first.
        next_steps: commands for the operator.
        matches: events and messages with the given beginning of an id.
        not_checked: places that could not be searched, with the reason.
        event: the outbox event, if one was found.
    """

    id: str
    answer: Sequence[str]
    steps: Sequence[object]
    next_steps: Sequence[str]
    matches: Sequence[object]
    not_checked: Sequence[str]
    event: object | None
    dead_letters: Sequence[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """Outcome of a change; ``text`` is its reason or effect."""

    done: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """Progress of a change to a group.

    Attributes:
        done: number of changed dead letters.
        failed: number of failures; ``text`` is the last one's.
        after: sequence to continue after.
        more: whether dead letters are left.
    """

    done: int
    failed: int
    after: int
    text: str
    more: bool


class OperatorApi(Protocol):
    """Queries servers on separate connections, one request at a time and each with a time limit.

    Every method raises OperatorBusyError, OperatorTimeoutError and the domain's UnavailableError and
    ContractError; the audit records ``actor`` and ``reason``.
    """

    async def lookup(self, text: str) -> LookupResult:
        """Find an event or message in outbox, stream, inbox and dead letters.

        Raises:
            ValueError: ``text`` is neither an id nor the beginning of one.
        """
        ...

    async def dead_events(self, *, event_type: str, error: str, below: int | None) -> ItemPage[DeadEvent]:
        """List DEAD events without their content, the latest first, with ``seq`` below ``below``."""
        ...

    async def event(self, id_: UUID) -> RecordDetail | None:
        """Return one event with its payload."""
        ...

    async def dead_letters(self, *, reason: str, after: int) -> ItemPage[DeadLetterSummary]:
        """List dead letters without their content, the oldest first, with ``seq`` after ``after``."""
        ...

    async def dead_letter_groups(self) -> ItemPage[DeadLetterCount]:
        """Count dead letters by reason and original subject, the most frequent first."""
        ...

    async def dead_letter(self, seq: int) -> RecordDetail:
        """Return one dead letter with the original's body."""
        ...

    async def actions(self) -> ItemPage[OperatorAction]:
        """List operators' changes, the latest first."""
        ...

    async def replay(self, id_: UUID, *, actor: str, reason: str) -> ActionResult:
        """Publish an event again."""
        ...

    async def redrive(self, seq: int, *, actor: str, reason: str) -> ActionResult:
        """Send a dead letter to the handler again."""
        ...

    async def redrive_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> GroupProgress:
        """Send the next dead letters of a group to the handler again."""
        ...

    async def purge_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> GroupProgress:
        """Delete the next dead letters of a group for good."""
        ...

    async def resume(self, event_type: str, *, actor: str, reason: str) -> ActionResult:
        """End the slow pace of an event type, or of all if it is empty."""
        ...
