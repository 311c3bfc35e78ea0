"""The pace of one event type, as decisions without a clock."""

import pytest

from sea_mq_worker.inbox.health import Throttle


def slowed(failures: int = 10, *, per_second: float = 1.0) -> Throttle:
    """Return a pace after so many different failures at 0 s."""
    pace = Throttle(slow_after=10, per_second=per_second)
    for number in range(failures):
        pace.failed(str(number), 0.0, may_count=True)
    return pace


def test_failures_count_until_there_is_a_run_of_different_messages() -> None:
    pace = Throttle(slow_after=3, per_second=1.0)
    assert [pace.failed("a", 0.0, may_count=False) for _ in range(9)] == [True] * 9
    assert pace.failed("b", 0.0, may_count=False)
    assert pace.slow_since is None
    assert not pace.failed("c", 7.0, may_count=False)
    assert pace.slow_since == 7.0


@pytest.mark.parametrize("per_second", [0.5, 1.0, 20.0])
def test_of_a_slow_type_failures_count_at_the_rate(per_second: float) -> None:
    pace = slowed(per_second=per_second)
    counted = sum(pace.failed("x", number / 100, may_count=True) for number in range(1, 6001))
    assert 60 * per_second - 1 <= counted <= 60 * per_second + 2


def test_of_a_slow_type_two_failures_count_at_once_after_a_quiet_time() -> None:
    pace = slowed()
    assert [pace.failed("x", 1000.0, may_count=True) for _ in range(4)] == [True, True, False, False]


def test_a_failure_that_may_not_count_leaves_the_place_to_another() -> None:
    pace = slowed()
    assert not pace.failed("x", 5.0, may_count=False)
    assert pace.failed("y", 5.0, may_count=True)


def test_messages_in_the_line_come_one_after_the_other() -> None:
    pace = slowed(per_second=2.0)
    assert [pace.next_turn(10.0) for _ in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert pace.next_turn(100.0) == 0.5


def test_the_longer_the_run_the_further_calls_are_apart() -> None:
    pace, now, moments = slowed(), 0.0, []
    for number in range(22_000):
        now += pace.take_call(now)
        moments.append(now)
        pace.failed(str(number), now, may_count=False)
    assert moments[300] < 3.0
    assert moments[-1] - moments[-2] == pytest.approx(1.0)


def test_calls_that_fit_into_a_while_are_those_that_can_be_taken() -> None:
    pace = slowed(2000)
    assert pace.calls_within(0.25, 0.0) == 3
    taken = [pace.take_call(0.0) for _ in range(3)]
    assert taken == pytest.approx([0.0, 0.1, 0.2])
    assert pace.calls_within(0.25, 0.0) == 0
