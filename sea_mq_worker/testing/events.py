"""Observer that records facts, so that tests wait for facts instead of sleeping."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

from sea_mq_worker.telemetry.events import EventPublished, EventsPublished, Fact

RecordedFact: TypeAlias = Fact | EventPublished
FactT = TypeVar("FactT", bound=RecordedFact)


def _any(_fact: object) -> bool:
    return True


class RecordingObserver:
    """Records every fact in ``facts``, in order; facts of several events are recorded one by one."""

    def __init__(self) -> None:
        self.facts: list[RecordedFact] = []
        self._waiting: list[tuple[Callable[[RecordedFact], bool], asyncio.Future[RecordedFact]]] = []

    def observe(self, fact: Fact) -> None:
        """Record ``fact`` and wake tasks that wait for it."""
        for single in fact.each() if isinstance(fact, EventsPublished) else (fact,):
            self.facts.append(single)
            for wanted, found in self._waiting:
                if not found.done() and wanted(single):
                    found.set_result(single)

    def of(self, kind: type[FactT]) -> list[FactT]:
        """Return the facts of one kind, in order."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    async def seen(
        self,
        kind: type[FactT],
        predicate: Callable[[FactT], bool] = _any,
        *,
        count: int = 1,
        within: float = 10.0,
    ) -> FactT:
        """Return the ``count``-th fact, from the beginning, of ``kind`` that ``predicate`` accepts.

        Raises:
            AssertionError: it did not happen within ``within`` seconds.
        """
        matching = [fact for fact in self.of(kind) if predicate(fact)]
        if len(matching) >= count:
            return matching[count - 1]
        remaining = count - len(matching)

        def wanted(fact: RecordedFact) -> bool:
            nonlocal remaining
            if isinstance(fact, kind) and predicate(fact):
                remaining -= 1
            return remaining == 0

        entry = (wanted, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(within):
                return cast("FactT", await entry[1])
        except TimeoutError:
            last = "\n  ".join(map(repr, self.facts[-10:]))
            raise AssertionError(
                f"no {kind.__name__} within {within:g} s; the last of {len(self.facts)} facts:\n  {last}"
            ) from None
        finally:
            self._waiting.remove(entry)
