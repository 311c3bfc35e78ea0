"""The position at which claims continue to read, and the sweeps that find events behind it."""

from datetime import UTC, datetime, timedelta

from sea_mq_worker.outbox.postgres import START, ClaimCursor, Position
from tests.support.simulation import Clock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEEN: Position = (NOW - timedelta(minutes=1), 7)
SWEEP_SECONDS = 1.0


def advance(
    cursor: ClaimCursor,
    position: Position = START,
    *,
    seconds: float = 0.001,
    truncated: bool = False,
    found_any: bool = False,
) -> None:
    cursor.advance(position, now=NOW, truncated=truncated, found_any=found_any, seconds=seconds)


def swept(clock: Clock, *, seconds: float = 0.001) -> ClaimCursor:
    """Make a cursor that has just been through its index."""
    cursor = ClaimCursor(clock)
    assert cursor.next() == START
    advance(cursor, SEEN, seconds=seconds)
    return cursor


def test_a_claim_continues_where_the_last_one_ended() -> None:
    cursor = swept(Clock())
    assert cursor.next() == SEEN


def test_what_a_long_transaction_may_still_commit_is_not_passed() -> None:
    cursor = swept(Clock())
    advance(cursor, (NOW, 9), seconds=0.001)
    assert cursor.next() == (NOW - timedelta(seconds=5), 0)


def test_a_sweep_comes_each_second_however_often_idle_claims_are_made() -> None:
    clock = Clock()
    cursor = swept(clock)
    starts = 0
    for _ in range(100):
        clock.now += 0.1
        starts += cursor.next() == START
        advance(cursor, SEEN, seconds=0.05)
    assert starts == 10 / SWEEP_SECONDS


def test_a_sweep_over_many_pages_without_anything_to_claim_is_one_sweep() -> None:
    clock = Clock()
    cursor = ClaimCursor(clock)
    for page in range(5):
        clock.now += 1.0
        assert (cursor.next() == START) == (page == 0)
        advance(cursor, (SEEN[0], page), truncated=True, seconds=1.0)
    advance(cursor, truncated=True, found_any=True, seconds=1.0)
    clock.now += 10
    assert cursor.next() != START


def test_a_dear_sweep_takes_a_twentieth_of_the_time_but_comes_twice_a_minute() -> None:
    clock = Clock()
    cursor = swept(clock, seconds=0.5)
    clock.now += 9.9
    assert cursor.next() != START
    clock.now += 0.1
    assert cursor.next() == START
    advance(cursor, SEEN, seconds=60.0)
    clock.now += 30.0
    assert cursor.next() == START


def test_a_dear_sweep_that_found_nothing_is_not_repeated_by_each_claim() -> None:
    clock = Clock()
    cursor = ClaimCursor(clock)
    assert cursor.next() == START
    advance(cursor, seconds=0.05)
    clock.now += 0.5
    assert cursor.next() == (NOW - timedelta(seconds=5), 0)


def test_a_rewind_takes_effect_immediately_also_during_a_sweep() -> None:
    cursor = swept(Clock())
    cursor.rewind()
    assert cursor.next() == START
    advance(cursor, SEEN, truncated=True, seconds=0.001)
    cursor.rewind()
    assert cursor.next() == START
