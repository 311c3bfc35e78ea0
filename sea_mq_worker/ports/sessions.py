"""Port: the sessions of workers in the store, by which a worker sees that another one has ended."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class OtherSession(NamedTuple):
    """One side of another worker, and whether that worker has ended.

    Attributes:
        session: identifies the worker's process; part of the tokens of its leases.
        side: ``outbox`` or ``inbox``.
        worker: name of the worker, for people.
        is_gone: no connection of the worker is left.
    """

    session: str
    side: str
    worker: str
    is_gone: bool


class WorkerSessions(Protocol):
    """The sessions of the workers of one store; the own one lasts as long as this worker."""

    async def others(self) -> Sequence[OtherSession]:
        """Return the sessions of other workers that began since the store last lost all sessions.

        Raises:
            StoreUnavailableError: the own session is interrupted; no earlier result holds any more.
        """
        ...

    async def forget(self, session: OtherSession) -> None:
        """Remove a session that is gone; one whose worker has come back stays.

        Raises:
            StoreUnavailableError: it may or may not be removed; repeating it is safe.
        """
        ...

    async def wait_for_change(self, *, timeout_seconds: float) -> None:
        """Return when another worker's session begins, or the own one again, or after the time-out."""
        ...
