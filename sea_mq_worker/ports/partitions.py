"""Port: the partitions that an outbox may have, a day each."""

from collections.abc import Sequence
from typing import Protocol


class Partitions(Protocol):
    """What keeps days ahead; where the outbox is a single table there is nothing to do."""

    async def make(self, *, days_ahead: int) -> Sequence[str]:
        """Make the missing ones of today and so many days after it; return their names.

        Several may ask at once. What is busy is left out, for the next time.

        Raises:
            StoreUnavailableError: the store cannot serve now.
            ContractError: this worker may not make any.
        """
        ...
