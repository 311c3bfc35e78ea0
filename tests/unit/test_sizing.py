"""A claim takes as many events as find room in memory."""

from sea_mq_worker.application.sizing import BatchSize
from sea_mq_worker.domain.events import ClaimedEvent
from tests.support.builders import claimed_event

KIB = 1024


def events(count: int, size: int) -> list[ClaimedEvent]:
    return [claimed_event(payload=b"x" * size)] * count


def test_small_events_are_claimed_up_to_the_limit() -> None:
    size = BatchSize(events_max=1000, bytes_max=16 * KIB * KIB)
    assert size.events == 500
    size.learn(events(500, 300))
    assert size.events == 1000


def test_large_events_make_smaller_claims_at_once_and_small_ones_larger_claims_by_and_by() -> None:
    size = BatchSize(events_max=1000, bytes_max=1000 * KIB)
    size.learn(events(500, KIB // 2))
    size.learn(events(1000, 100 * KIB))
    assert size.events == 10
    size.learn(events(10, KIB))
    assert size.events == 19
    for _ in range(20):
        size.learn(events(10, KIB // 2))
    assert size.events == 1000


def test_an_event_larger_than_the_limit_is_claimed_alone() -> None:
    size = BatchSize(events_max=1000, bytes_max=KIB)
    size.learn(events(3, 2 * KIB))
    assert size.events == 1


def test_an_empty_claim_says_nothing_of_sizes() -> None:
    size = BatchSize(events_max=1000, bytes_max=KIB)
    size.learn(events(1, KIB))
    size.learn([])
    assert size.events == 1
