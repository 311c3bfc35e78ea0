"""What becomes of an event after an attempt, and when it is tried again."""

from dataclasses import replace

import pytest

from sea_mq_worker.nats.message import FailedTransiently, PublishOutcome, Rejected, Stored, Unknown, Unsent
from sea_mq_worker.outbox.event import Died, Postponed, Published, Released, Verdict
from sea_mq_worker.outbox.publisher import first_wave
from sea_mq_worker.outbox.retry import RetryPolicy
from sea_mq_worker.runtime.breaker import Backoff
from tests.support.builders import claimed_event

POLICY = RetryPolicy(
    backoff=Backoff(base_seconds=1.0, cap_seconds=10.0, random=lambda: 1.0),
    failures_max=3,
    age_max_seconds=100.0,
    duplicate_window=lambda: 120.0,
)
EVENT, REPLAYED = claimed_event(), claimed_event(earlier_stream_seq=7)
STORED, DUPLICATE = Stored("S", 7), Stored("S", 7, duplicate=True)


@pytest.mark.parametrize(("tries", "seconds"), [(1, 1.0), (2, 2.0), (4, 8.0), (5, 10.0), (5000, 10.0)])
def test_backoff_doubles_up_to_its_cap_with_full_jitter(tries: int, seconds: float) -> None:
    assert POLICY.backoff.delay_seconds(tries) == seconds
    assert replace(POLICY.backoff, random=lambda: 0.0).delay_seconds(tries) == 0.0


@pytest.mark.clause(
    "event-model-30", "replay-delivered", "lifecycle-12", "lifecycle-08", "permanent-failures"
)
@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        pytest.param(Published(EVENT, STORED), STORED, id="stored"),
        pytest.param(Published(EVENT, DUPLICATE), DUPLICATE, id="known from an earlier attempt"),
        pytest.param(
            Published(REPLAYED, DUPLICATE._replace(seq=8)),
            DUPLICATE._replace(seq=8),
            id="replay, stored again",
        ),
        pytest.param(Died(EVENT, "too large"), Rejected("too large"), id="refused for good"),
        pytest.param(Postponed(EVENT, "no", 1.0, failed=True), FailedTransiently("no"), id="refused now"),
        pytest.param(Released(EVENT), Unsent("not connected"), id="not sent"),
    ],
)
def test_an_event_gets_the_verdict_of_its_outcome(verdict: Verdict, outcome: PublishOutcome) -> None:
    assert POLICY.judge(verdict.event, outcome) == verdict


@pytest.mark.clause("replay-delivered")
@pytest.mark.parametrize(("seconds_ago", "delay"), [(None, 121.0), (0.0, 121.0), (100.0, 21.0), (130.0, 1.0)])
def test_a_replay_that_the_duplicate_window_swallowed_waits_for_its_end(
    seconds_ago: float | None, delay: float
) -> None:
    verdict = POLICY.judge(REPLAYED, DUPLICATE._replace(seconds_ago=seconds_ago))
    assert isinstance(verdict, Postponed)
    assert (verdict.failed, verdict.delay_seconds) == (False, delay)


@pytest.mark.clause("lifecycle-12")
@pytest.mark.parametrize("given", [{"failures": 2}, {"attempted_seconds_ago": 101.0}])
def test_limits_by_attempts_and_by_age_end_dead(given: dict[str, float]) -> None:
    verdict = POLICY.judge(claimed_event(**given), FailedTransiently("no"))
    assert isinstance(verdict, Died)
    assert verdict.error.startswith("no")


@pytest.mark.clause("lifecycle-08")
@pytest.mark.parametrize("given", [{"failures": 99}, {"attempted_seconds_ago": 1e9}, {"attempts": 999}])
def test_without_an_answer_an_event_is_never_dead_and_tried_again_soon(given: dict[str, float]) -> None:
    patient = replace(POLICY, backoff=replace(POLICY.backoff, cap_seconds=300.0))
    verdict = patient.judge(claimed_event(**given), Unknown("timeout"))
    assert isinstance(verdict, Postponed)
    assert not verdict.failed
    assert verdict.delay_seconds <= 15.0


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
