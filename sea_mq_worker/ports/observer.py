"""Port: facts for operators; logs, metrics and test signals are its listeners."""

from typing import Protocol

from sea_mq_worker.domain.facts import Fact


class Observer(Protocol):
    """Takes facts as they happen; must be quick and must not raise."""

    def observe(self, fact: Fact) -> None:
        """Take note of ``fact``."""
        ...
