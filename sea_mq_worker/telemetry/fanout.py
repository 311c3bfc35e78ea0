"""One observer out of several."""

import logging
from collections.abc import Sequence

from sea_mq_worker.domain.facts import Fact
from sea_mq_worker.ports.observer import Observer

_log = logging.getLogger("sea_mq_worker")


class FanOut:
    """Passes every fact on to each listener; one that raises is told in the log once and kept."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._told: set[int] = set()

    def observe(self, fact: Fact) -> None:
        for number, observer in enumerate(self._observers):
            try:
                observer.observe(fact)
            except Exception:  # noqa: BLE001  (no fact is worth a stopped loop)
                self._tell_once(number, observer)

    def _tell_once(self, number: int, observer: Observer) -> None:
        if number not in self._told:
            self._told.add(number)
            name = type(observer).__name__
            _log.exception("%s raised on a fact", name, extra={"event": "observer_failed"})
