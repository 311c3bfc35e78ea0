"""Events that are recorded, so that tests wait for events instead of sleeping."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sea_mq_worker.telemetry.events import EVENTS, NOTICES


class Emitted(SimpleNamespace):
    """One event: its ``key``, and its fields as attributes."""

    key: str

    def __init__(self, key: str, /, **fields: Any) -> None:
        super().__init__(key=key, **fields)


def _any(_event: Emitted) -> bool:
    return True


class RecordingEvents:
    """Records every event, in order; what is emitted per batch is recorded event by event."""

    def __init__(self) -> None:
        self.emitted: list[Emitted] = []
        self._waiting: list[tuple[Callable[[Emitted], bool], asyncio.Future[Emitted]]] = []

    def emit(self, key: str, /, **fields: Any) -> None:
        """Record the event and wake tasks that wait for it.

        Raises:
            AssertionError: there is no such event, or it has other fields.
        """
        assert fields.keys() == set(EVENTS[key].emitted), f"{key} has the fields {EVENTS[key].emitted}"  # noqa: S101
        for each in fields["each"]() if "each" in fields else (fields,):
            event = Emitted(key, **each)
            self.emitted.append(event)
            for wanted, found in self._waiting:
                if not found.done() and wanted(event):
                    found.set_result(event)

    def of(self, key: str) -> list[Emitted]:
        """Return the events of one kind, in order."""
        return [event for event in self.emitted if event.key == key]

    @property
    def notices(self) -> list[Emitted]:
        """Warnings and errors for an operator that have only a ``text``, in order."""
        return [event for event in self.emitted if event.key in NOTICES]

    async def seen(
        self,
        key: str,
        predicate: Callable[[Emitted], bool] = _any,
        *,
        count: int = 1,
        within: float = 10.0,
    ) -> Emitted:
        """Return the ``count``-th event, from the beginning, of this kind that ``predicate`` accepts.

        Raises:
            AssertionError: it did not happen within ``within`` seconds.
        """
        matching = [event for event in self.of(key) if predicate(event)]
        if len(matching) >= count:
            return matching[count - 1]
        remaining = count - len(matching)

        def wanted(event: Emitted) -> bool:
            nonlocal remaining
            if event.key == key and predicate(event):
                remaining -= 1
            return remaining == 0

        found: asyncio.Future[Emitted] = asyncio.get_running_loop().create_future()
        entry = (wanted, found)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(within):
                return await found
        except TimeoutError:
            last = "\n  ".join(map(repr, self.emitted[-10:]))
            raise AssertionError(
                f"no {key} within {within:g} s; the last of {len(self.emitted)} events:\n  {last}"
            ) from None
        finally:
            self._waiting.remove(entry)
