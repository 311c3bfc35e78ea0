"""Which failures of a dependency a loop outlasts, in virtual time."""

import asyncio

import pytest

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, call_when_available
from sea_mq_worker.domain.errors import (
    BrokerUnavailableError,
    ContractError,
    DependencyError,
    FinalError,
    RowsRefusedError,
)
from sea_mq_worker.domain.facts import CircuitClosed, CircuitOpened
from sea_mq_worker.domain.retry import Backoff
from sea_mq_worker.testing.observer import RecordingObserver
from tests.support.simulation import in_virtual_time


class Failing:
    """A dependency that fails three times, and the circuit breaker before it."""

    def __init__(self, error: DependencyError) -> None:
        self.calls = 0
        self._error = error
        self.observer = RecordingObserver()
        self._breaker = CircuitBreaker(
            name="store",
            backoff=Backoff(base_seconds=0.2, cap_seconds=2.0, random=lambda: 1.0),
            observer=self.observer,
            clock=asyncio.get_running_loop().time,
        )

    async def ask(self) -> str:
        return await call_when_available(self._answer, breaker=self._breaker, stop=asyncio.Event())

    async def _answer(self) -> str:
        self.calls += 1
        if self.calls <= 3:
            raise self._error
        return "done"


@pytest.mark.parametrize("error", [BrokerUnavailableError("away"), ContractError("a stream is missing")])
@in_virtual_time
async def test_outages_and_fixable_errors_are_retried(error: DependencyError) -> None:
    failing = Failing(error)
    assert await failing.ask() == "done"
    assert failing.calls == 4
    assert [type(fact) for fact in failing.observer.facts] == [CircuitOpened, CircuitClosed]


@pytest.mark.parametrize("error", [FinalError("the schema is newer"), RowsRefusedError("a trigger")])
@in_virtual_time
async def test_what_no_waiting_helps_is_raised_at_once(error: DependencyError) -> None:
    failing = Failing(error)
    with pytest.raises(type(error)):
        await failing.ask()
    assert (failing.calls, failing.observer.facts) == (1, [])
