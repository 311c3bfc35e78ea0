"""Search for messages in a stream: the wanted messages, and the progress of a search."""

from typing import NamedTuple, TypeAlias

from sea_mq_worker.domain.messages import OutboundMessage
from sea_mq_worker.domain.outcomes import Stored


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
