"""Metrics from facts, for Prometheus, OTLP and the page; ``catalog.metrics`` lists them."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, assert_never, get_args

from sea_mq_worker.domain import facts
from sea_mq_worker.domain.read_models import Depth
from sea_mq_worker.telemetry.catalog.log_events import NOTICES
from sea_mq_worker.telemetry.exposition import Exposition
from sea_mq_worker.telemetry.series import Families, Histogram, Number, Rate

Side: TypeAlias = Literal["outbox", "inbox"]

_RENDER_SECONDS = 1.0
_COUNTER = re.compile(r"sea_mq_(?:outbox_|inbox_)?(\w+)_total")


class MetricsObserver:
    """Counts facts; ``render`` serves scrapes, ``totals`` and ``rates`` serve the page.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._families = Families()
        self._exposition = Exposition(self._families)
        self._rendered = b""
        self._rendered_at = float("-inf")
        self._rates = {"published": Rate(clock), "processed": Rate(clock)}
        self._open_circuits: set[str] = set()
        self._sampled_at: dict[Side, float] = {}
        self._processed: dict[tuple[str, int], tuple[Number, Histogram]] = {}
        self._begin_at_zero()
        self._published = self._number("outbox_published_total")
        self._latency = self._families.histograms["sea_mq_outbox_latency_seconds"].of()
        self._batch = self._families.histograms["sea_mq_outbox_batch_seconds"].of()

    def observe(self, fact: facts.Fact) -> None:  # noqa: C901, PLR0912  (one line a fact: the list is the point)
        match fact:
            case facts.EventsPublished():
                self._events_published(fact)
            case facts.MessageProcessed():
                self._message_processed(fact)
            case facts.BatchRelayed():
                self._batch_relayed(fact)
            case facts.ServerMessageSkipped():
                self._count("inbox_server_messages_total", fact.consumer)
            case facts.MessageSkipped():
                self._message_skipped(fact)
            case facts.MessagesMissed():
                self._count("inbox_missed_total", fact.consumer, amount=fact.count)
            case facts.EventPostponed():
                self._count("outbox_postponed_total")
            case facts.EventDied():
                self._count("outbox_died_total")
            case facts.MessageRetried():
                self._count("inbox_retried_total", fact.consumer)
            case facts.MessageGivenBack():
                self._count("inbox_given_back_total", fact.consumer)
            case facts.TypeSlowed() | facts.TypeResumed():
                self._number("inbox_slow_types").value += 1 if isinstance(fact, facts.TypeSlowed) else -1
            case facts.MessageDeadLettered():
                self._count("inbox_dead_lettered_total", fact.consumer, fact.reason)
            case facts.LeasesLost() | facts.WorkerTakenOver():
                self._leases_ended(fact)
            case facts.LeasesReaped():
                self._count("outbox_leases_reaped_total", amount=fact.count)
            case facts.CircuitOpened():
                self._circuit_opened(fact)
            case facts.CircuitClosed():
                self._circuit_closed(fact)
            case facts.Noticed():
                self._count("notices_total", fact.event)
            case facts.WorkerStarted():
                self._number("worker_info", fact.name, fact.version).value = 1
            case facts.WorkerStopped() | facts.Progressed():
                pass
            case _:
                assert_never(fact)

    def set_depth(self, side: Side, depth: Depth) -> None:
        """Record a sample of one side's table (QRY-050, QRY-051)."""
        self._sampled_at[side] = self._clock()
        self._number(f"{side}_depth").value = depth.waiting
        self._number(f"{side}_oldest_seconds").value = depth.waiting_seconds
        self._number(f"{side}_dead").value = depth.dead
        if side == "outbox":
            self._number("outbox_scheduled").value = depth.scheduled

    def set_events_lost(self, lost: bool) -> None:
        self._number("outbox_events_lost").value = int(lost)

    def set_consumer(self, consumer: str, pending: int, ack_pending: int, oldest_seconds: float) -> None:
        self._number("consumer_pending", consumer).value = pending
        self._number("consumer_ack_pending", consumer).value = ack_pending
        self._number("consumer_oldest_seconds", consumer).value = oldest_seconds

    def render(self) -> bytes:
        """Return the exposition, rendered at most once a second, because rendering takes milliseconds."""
        now = self._clock()
        if now - self._rendered_at >= _RENDER_SECONDS:
            self.measure()
            self._rendered, self._rendered_at = self._exposition.render(), now
        return self._rendered

    def measure(self) -> Families:
        for side, at in self._sampled_at.items():
            self._number("backlog_sample_age_seconds", side).value = self._clock() - at
        return self._families

    def rates(self) -> Mapping[str, float]:
        """Return the published and processed rates of the last seconds, per second."""
        return {name: round(rate.per_second(), 1) for name, rate in self._rates.items()}

    def totals(self) -> Mapping[str, float]:
        """Return the nonzero totals since the start, over all labels."""
        sums = {
            counter[1]: sum(number.value for number in family.series.values())
            for name, family in self._families.numbers.items()
            if (counter := _COUNTER.fullmatch(name))
        }
        return {name: total for name, total in sums.items() if total}

    def _begin_at_zero(self) -> None:
        """Create known series at 0: Prometheus sees no increase of a series that begins at 1."""
        self._number("inbox_slow_types")
        for side in get_args(Side):
            self._number("leases_lost_total", side)
            self._number("leases_taken_over_total", side)
        for event in NOTICES:
            self._number("notices_total", event.key)

    def _leases_ended(self, fact: facts.LeasesLost | facts.WorkerTakenOver) -> None:
        what = "lost" if isinstance(fact, facts.LeasesLost) else "taken_over"
        self._count(f"leases_{what}_total", fact.side, amount=fact.count)

    def _events_published(self, fact: facts.EventsPublished) -> None:
        count = len(fact.latencies)
        self._published.value += count
        self._rates["published"].add(count)
        self._latency.observe_all(fact.latencies)
        self._count("outbox_duplicates_total", amount=fact.duplicates)

    def _message_processed(self, fact: facts.MessageProcessed) -> None:
        processed, seconds = self._processed_by(fact.consumer, fact.status)
        processed.value += 1
        self._rates["processed"].add()
        seconds.observe(fact.seconds)

    def _processed_by(self, consumer: str, status: int) -> tuple[Number, Histogram]:
        """Look the labels up once per pair, because every message needs them."""
        found = self._processed.get((consumer, status))
        if found is None:
            found = self._processed[consumer, status] = (
                self._number("inbox_processed_total", consumer, str(status)),
                self._families.histograms["sea_mq_inbox_message_seconds"].of(consumer),
            )
        return found

    def _circuit_opened(self, fact: facts.CircuitOpened) -> None:
        if fact.circuit not in self._open_circuits:
            self._count("circuit_opened_total", fact.circuit)
        self._open_circuits.add(fact.circuit)
        self._number("circuit_open", fact.circuit).value = 1

    def _batch_relayed(self, fact: facts.BatchRelayed) -> None:
        self._batch.observe(fact.seconds)
        self._count("outbox_released_total", amount=fact.released)

    def _message_skipped(self, fact: facts.MessageSkipped) -> None:
        self._count("inbox_skipped_total", fact.consumer)
        if fact.brought_by:
            self._count("inbox_overlapping_total", fact.consumer)

    def _circuit_closed(self, fact: facts.CircuitClosed) -> None:
        self._open_circuits.discard(fact.circuit)
        self._number("circuit_open", fact.circuit).value = 0

    def _count(self, name: str, *labels: str, amount: int = 1) -> None:
        self._number(name, *labels).value += amount

    def _number(self, name: str, *labels: str) -> Number:
        return self._families.numbers[f"sea_mq_{name}"].of(*labels)
