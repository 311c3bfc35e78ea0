"""An observer that passes facts to several observers."""

import logging
from collections.abc import Sequence

from sea_mq_worker.domain.facts import Fact
from sea_mq_worker.ports.observer import Observer

_log = logging.getLogger("sea_mq_worker")


class FanOut:
    """Passes every fact to each observer; logs the first exception of each, and continues."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._logged: set[int] = set()

    def observe(self, fact: Fact) -> None:
        for number, observer in enumerate(self._observers):
            try:
                observer.observe(fact)
            except Exception:  # noqa: BLE001  (no fact is worth a stopped loop)
                self._log_once(number, observer)

    def _log_once(self, number: int, observer: Observer) -> None:
        if number not in self._logged:
            self._logged.add(number)
            name = type(observer).__name__
            _log.exception("%s raised on a fact", name, extra={"event": "observer_failed"})
