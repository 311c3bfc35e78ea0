from dataclasses import replace

import pytest

from sea_mq_worker.nats.message import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown, Unsent
from sea_mq_worker.outbox.event import Died, Postponed, Published, Released
from sea_mq_worker.outbox.publisher import first_wave
from sea_mq_worker.outbox.retry import RetryPolicy
from sea_mq_worker.runtime.breaker import Backoff
from tests.support.builders import claimed_event


def policy(*, failures_max: int = 3, age_max_seconds: float = 100.0, random: float = 1.0) -> RetryPolicy:
    return RetryPolicy(
        backoff=Backoff(base_seconds=1.0, cap_seconds=10.0, random=lambda: random),
        failures_max=failures_max,
        age_max_seconds=age_max_seconds,
        duplicate_window=lambda: 120.0,
    )


@pytest.mark.parametrize(("tries", "seconds"), [(1, 1.0), (2, 2.0), (4, 8.0), (5, 10.0), (5000, 10.0)])
def test_backoff_doubles_up_to_its_cap(tries: int, seconds: float) -> None:
    assert Backoff(base_seconds=1.0, cap_seconds=10.0, random=lambda: 1.0).delay_seconds(tries) == seconds


def test_backoff_has_full_jitter() -> None:
    assert Backoff(base_seconds=1.0, cap_seconds=10.0, random=lambda: 0.0).delay_seconds(9) == 0.0


@pytest.mark.clause("event-model-30")
def test_a_stored_event_is_published() -> None:
    event, stored = claimed_event(), Stored("SEA_EVENTS", 7)
    assert policy().judge(event, stored) == Published(event, stored)


@pytest.mark.clause("event-model-30")
def test_a_duplicate_of_the_same_lifecycle_is_published() -> None:
    event, stored = claimed_event(attempts=2), Stored("SEA_EVENTS", 7, duplicate=True)
    assert policy().judge(event, stored) == Published(event, stored)


@pytest.mark.clause("replay-delivered")
def test_a_replay_that_the_duplicate_window_swallowed_waits_for_its_end() -> None:
    event, swallowed = claimed_event(earlier_stream_seq=7), Stored("SEA_EVENTS", 7, duplicate=True)
    delays = []
    for seconds_ago in (None, 0.0, 100.0, 130.0):
        verdict = policy().judge(event, swallowed._replace(seconds_ago=seconds_ago))
        assert isinstance(verdict, Postponed)
        assert not verdict.failed
        delays.append(verdict.delay_seconds)
    assert delays == [121.0, 121.0, 21.0, 1.0]


@pytest.mark.clause("replay-delivered")
def test_a_replay_that_the_stream_stores_again_is_published() -> None:
    event = claimed_event(earlier_stream_seq=7)
    assert isinstance(policy().judge(event, Stored("SEA_EVENTS", 8, duplicate=True)), Published)
    assert isinstance(policy().judge(event, Stored("SEA_EVENTS", 8)), Published)


@pytest.mark.clause("lifecycle-12", "permanent-failures")
def test_a_refused_event_is_dead_at_once() -> None:
    event = claimed_event()
    assert policy().judge(event, Rejected("too large")) == Died(event, "too large")


@pytest.mark.clause("lifecycle-08")
def test_a_failed_event_is_tried_again_with_backoff() -> None:
    event = claimed_event(failures=1)
    assert policy().judge(event, FailedTransiently("no")) == Postponed(event, "no", 2.0, failed=True)


@pytest.mark.clause("lifecycle-12")
@pytest.mark.parametrize("given", [{"failures": 2}, {"attempted_seconds_ago": 101.0}])
def test_limits_by_attempts_and_by_age_end_dead(given: dict[str, float]) -> None:
    verdict = policy().judge(claimed_event(**given), FailedTransiently("no"))
    assert isinstance(verdict, Died)
    assert verdict.error.startswith("no")


@pytest.mark.clause("lifecycle-08")
@pytest.mark.parametrize("given", [{"failures": 99}, {"attempted_seconds_ago": 1e9}, {"attempts": 999}])
def test_no_answer_never_makes_an_event_dead(given: dict[str, float]) -> None:
    verdict = policy().judge(claimed_event(**given), Unknown("timeout"))
    assert isinstance(verdict, Postponed)
    assert not verdict.failed


def test_an_event_without_an_answer_is_tried_again_soon_however_often_it_was() -> None:
    patient = replace(policy(), backoff=Backoff(base_seconds=1.0, cap_seconds=300.0, random=lambda: 1.0))
    verdict = patient.judge(claimed_event(attempts=99), Unknown("timeout"))
    assert isinstance(verdict, Postponed)
    assert verdict.delay_seconds == 15.0


def test_what_was_not_sent_is_released() -> None:
    event = claimed_event()
    outcome: PublishOutcome = Unsent("not connected")
    assert policy().judge(event, outcome) == Released(event)


@pytest.mark.clause("event-model-15")
def test_waves_hold_each_key_once_and_keep_its_order() -> None:
    left = [
        claimed_event(seq=seq, ordering_key=key)
        for seq, key in enumerate(["a", "b", "a", None, "a", "b", None])
    ]
    seqs = []
    while left:
        wave, left = first_wave(left)
        seqs.append([event.seq for event in wave])
    assert seqs == [[0, 1, 3, 6], [2, 5], [4]]
