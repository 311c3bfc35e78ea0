"""Retry policy: the effect of a publish outcome on its event, and the delay of a retry."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from sea_mq_worker.nats.message import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown, Unsent
from sea_mq_worker.outbox.event import Died, OutboxEvent, Postponed, Published, Released, Verdict
from sea_mq_worker.runtime.breaker import Backoff

_LATE_SECONDS = 1.0
"""Margin in seconds: a stream may forget an id a moment after the end of its deduplication window."""
_BLAMELESS_CAP_SECONDS = 15.0
"""Cap of the delay after an outage, so that events go out soon after recovery."""

_FOR_EVER = ("INVALID_OUTBOX:", "ID_TAKEN:")


def can_be_sent(error: str | None) -> bool:
    """Return whether a DEAD event with this error can be published unchanged once the cause is fixed."""
    return not (error or "").startswith(_FOR_EVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When an event is retried, and when it is dead (Open Outbox, termination conditions).

    Attributes:
        failures_max: number of failed attempts that make an event dead.
        age_max_seconds: an event that fails later than this after its first attempt is dead.
        duplicate_window: returns how long the stream remembers a message id, in seconds.
    """

    backoff: Backoff
    failures_max: int
    age_max_seconds: float
    duplicate_window: Callable[[], float]

    def judge(self, event: OutboxEvent, outcome: PublishOutcome) -> Verdict:
        """Decide the verdict on ``event`` after a publish attempt."""
        match outcome:
            case Stored(duplicate=False):
                return Published(event, outcome)
            case Stored():
                return self._known(event, outcome)
            case Rejected(reason):
                return Died(event, reason)
            case FailedTransiently(reason):
                return self._failed(event, reason)
            case Unknown(reason):
                cap = min(self.backoff.cap_seconds, _BLAMELESS_CAP_SECONDS)
                delay = replace(self.backoff, cap_seconds=cap).delay_seconds(event.attempts)
                return Postponed(event, reason, delay, failed=False)
            case Unsent():
                return Released(event)
            case _:
                assert_never(outcome)

    def _known(self, event: OutboxEvent, stored: Stored) -> Verdict:
        """Postpone a replay that was dropped as a duplicate until the deduplication window ends."""
        if stored.seq == event.earlier_stream_seq:
            return Postponed(
                event,
                "the replay waits until the stream's duplicate window has forgotten the earlier copy",
                self._forgotten_in(stored),
                failed=False,
            )
        return Published(event, stored)

    def _forgotten_in(self, stored: Stored) -> float:
        """Return how long the stream remembers a copy; the maximum for a copy of unknown age."""
        return max(self.duplicate_window() - (stored.seconds_ago or 0.0), 0.0) + _LATE_SECONDS

    def _failed(self, event: OutboxEvent, reason: str) -> Verdict:
        if event.failures + 1 >= self.failures_max:
            return Died(event, f"{reason} (failed {event.failures + 1} times)")
        if event.attempted_seconds_ago > self.age_max_seconds:
            return Died(event, f"{reason} (for more than {self.age_max_seconds:.0f} s)")
        return Postponed(event, reason, self.backoff.delay_seconds(event.failures + 1), failed=True)
