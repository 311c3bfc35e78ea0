"""Circuit breaker before a dependency, so that an outage uses up no attempt of an event or message.

A closed circuit lets every call through. The first failure opens it; then one caller at a time gets a
permit to probe, each time after a longer wait, until a probe succeeds::

    CLOSED --- record_failure ---> OPEN --- wait ---> PROBING --- record_success ---> CLOSED
                                    ^                    |
                                    +-- record_failure --+    failures + 1: the next wait is longer
                                    +-- release ---------+    nothing was tried: the same wait

An example with three callers and a first wait of 0.2 s::

    A  record_failure("no servers")   circuit opens
    B  enter() ... C enter() ...      both wait in a queue
       0.2 s later                    B gets Permit.PROBE, C waits on
    B  record_failure("no servers")   B rejoins the queue behind C
       0.4 s later                    C gets Permit.PROBE
    C  record_success()               circuit closes, A and B get Permit.FREE

The waits are drawn with full jitter; the ones shown are their upper bounds.

``inbox/consumer`` operates the handler's circuit: NotDelivered opens it, a whole answer closes it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from sea_mq_worker.errors import ContractError, DependencyError, FinalError, RowsRefusedError
from sea_mq_worker.ports import Events
from sea_mq_worker.runtime.waiting import StoppedError, cancel_on_stop, sleep_or_stop

_T = TypeVar("_T")

_EXPONENT_MAX = 30
"""Cap on the exponent: ``cap_seconds`` applies long before; this only keeps the power of two small."""
_PROBE_GROWTH = 8
_PROBE_GROWTHS_MAX = 4
_TURN_SECONDS = 0.05
"""Interval at which a queued caller checks whether the caller before it has left the queue."""
_LEAVE_SECONDS = 1.0
"""Interval at which a caller checks during another one's probe whether it should leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with full jitter; ``random`` draws uniform numbers in [0, 1)."""

    base_seconds: float
    cap_seconds: float
    random: Callable[[], float]

    def delay_seconds(self, tries: int) -> float:
        """Draw a delay after ``tries`` (1 or more) failed attempts."""
        bound = self.base_seconds * 2.0 ** min(tries - 1, _EXPONENT_MAX)
        return float(self.random() * min(self.cap_seconds, bound))


class Permit(Enum):
    """Answer of the circuit breaker to a caller."""

    FREE = "free"
    PROBE = "probe"
    STOPPED = "stopped"
    LEFT = "left"


class CircuitBreaker:
    """One circuit per dependency; call all methods from one event loop."""

    def __init__(self, *, name: str, backoff: Backoff, events: Events, clock: Callable[[], float]) -> None:
        self.name = name
        self.reason = ""
        """Why the circuit is open; empty while it is closed."""
        self.is_refused = False
        """The last failure was a refusal, whose end only a call of the same kind proves."""
        self._backoff = backoff
        self._events = events
        self._clock = clock
        self._failures = self._rejected_probes = 0
        self._opened_at = self._failed_at = self._retry_at = 0.0
        self._broken_at: float | None = None
        self._probing = False
        self._queue: dict[object, None] = {}
        self._changed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return not self.reason

    @property
    def open_seconds(self) -> float:
        """Seconds since the circuit opened; 0 while it is closed."""
        return self._clock() - self._opened_at if self.reason else 0.0

    @property
    def has_callers(self) -> bool:
        """Whether a caller probes or waits for its turn to do so."""
        return self._probing or bool(self._queue)

    @property
    def failures(self) -> int:
        """Failures in a row, probes included; 0 while the circuit is closed."""
        return self._failures if self.reason else 0

    @property
    def quiet_seconds(self) -> float:
        """Seconds since the last failure."""
        return self._clock() - self._failed_at

    @property
    def broken_seconds(self) -> float:
        """Seconds since the circuit opened for a fault that an operator must fix; 0 otherwise."""
        return 0.0 if self._broken_at is None else self._clock() - self._broken_at

    @property
    def probe_batch_max(self) -> int:
        """Batch size of a probe: 1, times 8 after each probe that was entirely rejected, at most 4096.

        A growing probe finds the items that the dependency accepts behind those that it rejects.
        """
        return int(_PROBE_GROWTH ** min(self._rejected_probes, _PROBE_GROWTHS_MAX))

    async def enter(self, stop: asyncio.Event, *, leaves: Callable[[], bool] = bool) -> Permit:
        """Wait while the circuit is open, unless the worker stops; a closed circuit permits even then.

        The caller may leave the queue: it gets ``Permit.LEFT`` soon after ``leaves`` returns true.

        A caller with ``Permit.PROBE`` must call record_failure, record_success or release. Callers probe in
        the order in which they entered, so that one that always fails does not keep the others from a probe.
        """
        if not self.reason:
            return Permit.FREE
        place = object()
        self._queue[place] = None
        try:
            return await self._wait_turn(place, leaves, stop)
        finally:
            del self._queue[place]
            if not self.has_callers:
                self._notify()

    async def wait_for_probe(self, *, unless: asyncio.Event) -> None:
        """Wait until a probe has ended, no caller is left to make one, or ``unless`` is set."""
        await self._wait_changed(unless, None)

    def record_failure(
        self, reason: str, *, answered: bool = False, refused: bool = False, broken: bool = False
    ) -> None:
        """Open the circuit, or keep it open for longer after a failed probe.

        Failures of calls that began before the circuit opened change nothing, except during a probe. The
        circuit does not know its callers, so such a failure counts as the probe's, and the next probe begins
        beside the present one: it costs one call more.

        ``answered``: the dependency is reachable, but rejects the call; ``refused``: only a call of the same
        kind that succeeds proves the end of the fault; ``broken``: the fault lasts until an operator fixes
        it.
        """
        if not self.reason:
            self._opened_at = self._clock()
            self._failures = self._rejected_probes = 0
        elif not self._probing:
            return
        self._failures += 1
        self._failed_at = self._clock()
        self.is_refused = refused
        if not broken:
            self._broken_at = None
        elif self._broken_at is None:
            self._broken_at = self._clock()
        self._rejected_probes = self._rejected_probes + 1 if answered else 0
        delay = self._backoff.delay_seconds(self._failures)
        if reason != self.reason:
            self._events.emit("circuit_opened", circuit=self.name, reason=reason, retry_seconds=delay)
        self.reason = reason
        self._schedule(delay)

    def record_exception(self, error: DependencyError) -> None:
        """Record the error that a call has raised."""
        self.record_failure(str(error), broken=isinstance(error, ContractError))

    def release(self) -> None:
        """Give back the permit of a probe that tried nothing: another caller probes after the same wait."""
        if self._probing:
            self._schedule(self._backoff.delay_seconds(max(self._failures, 1)))

    def record_success(self) -> None:
        """Close the circuit: the dependency works."""
        if not self.reason:
            return
        paused = self._clock() - self._opened_at
        self.reason, self._broken_at = "", None
        self._events.emit("circuit_closed", circuit=self.name, paused_seconds=paused)
        self._schedule(0.0)

    def _schedule(self, delay: float) -> None:
        self._probing = False
        self._retry_at = self._clock() + delay
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_turn(self, place: object, leaves: Callable[[], bool], stop: asyncio.Event) -> Permit:
        while self.reason:
            if stop.is_set():
                return Permit.STOPPED
            if leaves():
                return Permit.LEFT
            remaining = self._retry_at - self._clock()
            first = next(iter(self._queue)) is place
            if first and not self._probing and remaining <= 0:
                self._probing = True
                return Permit.PROBE
            wait = max(remaining, 0.0 if first else _TURN_SECONDS)
            await self._wait_changed(stop, _LEAVE_SECONDS if self._probing else wait)
        return Permit.FREE

    async def _wait_changed(self, stop: asyncio.Event, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError, StoppedError):
            async with asyncio.timeout(seconds):
                await cancel_on_stop(stop, self._changed.wait())


async def call_when_available(
    call: Callable[[], Awaitable[_T]], *, breaker: CircuitBreaker, stop: asyncio.Event
) -> _T:
    """Repeat an idempotent call until it succeeds, waiting at the dependency's circuit in between.

    Raises StoppedError if the worker stops meanwhile, and the errors that no waiting ends: RowsRefusedError,
    after which the dependency counts as available, and FinalError.
    """
    while await breaker.enter(stop) is not Permit.STOPPED:
        try:
            result = await call()
        except RowsRefusedError:
            breaker.record_success()
            raise
        except FinalError:
            breaker.release()
            raise
        except DependencyError as error:
            breaker.record_exception(error)
        except BaseException:
            breaker.release()  # a cancelled probe must not block the probes of other callers
            raise
        else:
            breaker.record_success()
            return result
    raise StoppedError(breaker.reason)


def periodic(
    work: Callable[[], Awaitable[None]], *, breaker: CircuitBreaker, seconds: float
) -> Callable[[asyncio.Event], Coroutine[Any, Any, None]]:
    """Return a loop that does ``work`` at once and then every ``seconds``, and waits at the circuit."""

    async def run(stop: asyncio.Event) -> None:
        with contextlib.suppress(StoppedError):
            while not stop.is_set():
                await call_when_available(work, breaker=breaker, stop=stop)
                await sleep_or_stop(stop, seconds=seconds)

    return run
