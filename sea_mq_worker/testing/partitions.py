"""Port Partitions in memory: which days of an outbox are made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta


@dataclass(slots=True)
class InMemoryPartitions:
    """The days of an outbox in partitions; None: it is a single table."""

    today: Callable[[], date]
    days: set[date] | None = field(default_factory=set)

    async def make(self, *, days_ahead: int) -> Sequence[str]:
        """Make the missing ones; see ``ports.partitions.Partitions``."""
        if self.days is None:
            return []
        wanted = [self.today() + timedelta(days=ahead) for ahead in range(days_ahead + 1)]
        missing = [day for day in wanted if day not in self.days]
        self.days.update(missing)
        return [f"outbox_events_{day:%Y%m%d}" for day in missing]
