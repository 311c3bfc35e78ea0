"""Looking for messages in a stream that may hold them: what is wanted, and how far a search came."""

from typing import NamedTuple, TypeAlias

from sea_mq_worker.domain.outcomes import Stored


class SearchProgress(NamedTuple):
    """A search that has not found its message; another one goes on from here.

    Sequences count within the stream that was made at ``created``.
    """

    created: str
    through: int
    """Nothing up to this sequence is the message."""
    until: int
    """Where the search ends; what is stored later was not there when it began."""

    @property
    def is_over(self) -> bool:
        """The stream has no such message."""
        return self.left == 0

    @property
    def left(self) -> int:
        """Sequences that are still to be looked at."""
        return max(0, self.until - self.through)


class SearchedId(NamedTuple):
    """A message to look for."""

    id: str
    since_seconds: float
    """How far back it may have been stored."""
    subject: str = ""
    """That it was published to; empty: any."""
    other_than: int = 0
    """Sequence of a copy that does not count."""
    looked: SearchProgress | None = None
    """Where an earlier search stopped."""


SearchResult: TypeAlias = Stored | SearchProgress
