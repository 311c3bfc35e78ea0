"""Port: the daily partitions of an outbox."""

from collections.abc import Sequence
from typing import Protocol


class Partitions(Protocol):
    """Creates partitions ahead; does nothing where the outbox is a single table."""

    async def make(self, *, days_ahead: int) -> Sequence[str]:
        """Create the missing partitions of today and the next ``days_ahead`` days; return their names.

        Safe to call concurrently. A partition that is locked is left to the next call.

        Raises:
            StoreUnavailableError: the store cannot serve now.
            ContractError: this worker has no right to create partitions.
        """
        ...
