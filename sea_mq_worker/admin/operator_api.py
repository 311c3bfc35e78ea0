"""Port of the page: what an operator with the token may ask and do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from uuid import UUID

Data: TypeAlias = Mapping[str, Any]
"""To be shown as JSON; dataclasses, moments and ids may be in it."""


class OperatorBusyError(Exception):
    """Somebody else's question is being worked on: ask again in a moment."""


class OperatorTimeoutError(Exception):
    """The question took too long and was given up; what it was to change may or may not have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters of one reason and original subject, with sequences behind ``after`` up to ``last``."""

    reason: str
    subject: str
    after: int
    last: int


class OperatorApi(Protocol):
    """Asks servers on connections of its own, one question at a time and each within a bound.

    Every method raises DeskBusyError, DeskTimeoutError and the domain's UnavailableError and ContractError;
    ``actor`` and ``reason`` go into the audit.
    """

    async def whereabouts(self, text: str) -> Data:
        """Tell where an event or message is: outbox, stream, inbox, dead letters.

        Raises:
            ValueError: ``text`` is no id, and not the beginning of one.
        """
        ...

    async def dead_events(self, *, event_type: str, error: str, below: int | None) -> Data:
        """List DEAD events without their content, the latest first; ``below`` the last ``seq`` seen."""
        ...

    async def event(self, id_: UUID) -> Data | None:
        """Return all of one event, its payload too."""
        ...

    async def dead_letters(self, *, reason: str, after: int) -> Data:
        """List dead letters without their content, the oldest first; ``after`` the last ``seq`` seen."""
        ...

    async def letter_groups(self) -> Data:
        """Count dead letters by reason and original subject, the most frequent first."""
        ...

    async def dead_letter(self, seq: int) -> Data:
        """Return all of one dead letter, the original's body too."""
        ...

    async def actions(self) -> Data:
        """List what operators did, the latest first."""
        ...

    async def replay(self, id_: UUID, *, actor: str, reason: str) -> Data:
        """Publish an event again; ``done`` and ``text`` tell what came of it."""
        ...

    async def redrive(self, seq: int, *, actor: str, reason: str) -> Data:
        """Hand a dead letter to the handler again; ``done`` and ``text`` tell what came of it."""
        ...

    async def redrive_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> Data:
        """Hand the next few of a group to the handler again.

        ``done`` and ``failed`` count them, ``text`` is the last failure's; ``after`` is where to go on, and
        ``more`` whether there is something to go on with.
        """
        ...

    async def purge_group(self, group: DeadLetterGroup, *, actor: str, reason: str) -> Data:
        """Delete the next few of a group for good; answers as ``redrive_group`` does."""
        ...

    async def resume(self, event_type: str, *, actor: str, reason: str) -> Data:
        """End the slow pace of an event type, or of all by an empty one; answers as ``replay`` does."""
        ...
