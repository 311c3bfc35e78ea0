"""In-memory fake of what operators resume."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class InMemoryResumptions:
    """The types that were resumed, and when by the clock."""

    clock: Callable[[], float]
    _asked: list[tuple[str, float]] = field(default_factory=list)

    def resume(self, event_type: str) -> None:
        """Note it."""
        self._asked.append((event_type, self.clock()))

    async def resumed(self, *, within_seconds: float) -> Sequence[tuple[str, float]]:
        """Return what was resumed so lately."""
        now = self.clock()
        return [(name, now - at) for name, at in self._asked if now - at <= within_seconds]
