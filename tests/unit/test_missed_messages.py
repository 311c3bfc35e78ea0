"""Messages that a consumer was never given, found by two checks of its progress."""

from dataclasses import replace

import pytest

from sea_mq_worker.inbox.missed import Missed, Passed, Standing, find_missed

BEFORE = Standing(
    stream_created="2025-01-01",
    consumer_created="2025-01-02",
    first_seq=1,
    last_seq=50,
    delivered=10,
    deliveries=10,
    pending=40,
    takes_all=True,
    replaces=False,
)


def test_what_retention_took_from_a_consumer_that_was_away_is_counted() -> None:
    now = replace(BEFORE, first_seq=41, pending=10)
    assert find_missed(BEFORE, now) == Missed(11, 40, 30)


def test_what_a_purge_took_is_counted_although_the_server_moves_the_consumer_on() -> None:
    now = replace(BEFORE, first_seq=81, last_seq=80, delivered=80, pending=0)
    assert find_missed(BEFORE, now) == Missed(11, 80, 70)


def test_what_was_delivered_before_it_left_is_not_missed() -> None:
    now = replace(BEFORE, first_seq=61, last_seq=70, delivered=70, deliveries=75, pending=0)
    assert find_missed(BEFORE, now) is None


def test_what_is_delivered_again_makes_the_count_too_low_and_never_too_high() -> None:
    now = replace(BEFORE, first_seq=41, delivered=45, deliveries=18, pending=5)
    assert find_missed(BEFORE, now) == Missed(11, 40, 27)


def test_of_a_filtered_consumer_only_what_was_pending_can_be_missed() -> None:
    before = replace(BEFORE, takes_all=False, pending=3)
    assert find_missed(before, replace(before, first_seq=200, last_seq=300, pending=0)) == Missed(11, 199, 3)
    assert find_missed(replace(before, pending=0), replace(before, first_seq=200, pending=0)) is None


@pytest.mark.parametrize(("takes_all", "found"), [(True, Missed(11, 20, 10)), (False, None)])
def test_at_the_first_look_the_stream_may_begin_behind_what_was_delivered(
    *, takes_all: bool, found: Missed | None
) -> None:
    assert find_missed(None, replace(BEFORE, first_seq=21, pending=30, takes_all=takes_all)) == found


def test_pending_messages_are_missed_when_their_stream_is_recreated() -> None:
    now = replace(BEFORE, stream_created="2025-02-01", consumer_created="2025-02-01", last_seq=5, pending=5)
    assert find_missed(BEFORE, now) == Missed(11, 50, 40)


def test_what_a_recreated_durable_begins_behind_is_missed_as_what_left_the_stream() -> None:
    now = replace(BEFORE, consumer_created="2025-02-01", first_seq=31, delivered=30, deliveries=0, pending=20)
    assert find_missed(BEFORE, now) == Missed(11, 30, 20)
    assert find_missed(BEFORE, replace(now, pending=15)) == Missed(11, 30, 20)
    assert find_missed(BEFORE, replace(now, delivered=50, pending=0)) == Missed(11, 50, 40)
    assert find_missed(BEFORE, replace(now, first_seq=1, delivered=0, deliveries=0, pending=50)) is None
    filtered = replace(BEFORE, takes_all=False, pending=10)
    now = replace(now, takes_all=False, delivered=45, deliveries=4, pending=2)
    assert find_missed(filtered, now) == Missed(11, 45, 4)


def test_pending_messages_are_missed_when_their_stream_lost_its_end() -> None:
    assert find_missed(BEFORE, replace(BEFORE, last_seq=45, pending=35)) == Missed(46, 50, 5)
    assert find_missed(BEFORE, replace(BEFORE, last_seq=8, delivered=8, deliveries=8, pending=0)) == (
        Missed(11, 50, 40)
    )
    delivered = replace(BEFORE, delivered=50, deliveries=50, pending=0)
    assert find_missed(delivered, replace(delivered, last_seq=45)) is None


def test_messages_stored_between_the_requests_of_a_check_are_not_missed() -> None:
    before = replace(BEFORE, delivered=55, deliveries=55, pending=0)
    now = replace(before, first_seq=61, last_seq=60, delivered=60, deliveries=60)
    assert find_missed(before, now) is None


def passed() -> Passed:
    return Passed(("stream", "consumer"), "a", 10, 10)


def test_nothing_is_compared_while_the_same_server_answers() -> None:
    search = passed()
    for settled in (20, 30, 40):
        assert search.look("a", settled, 50) <= search.compared
    assert search.compared == 30


def test_after_another_server_answers_all_is_compared_that_was_stored_by_then() -> None:
    search = passed()
    search.look("a", 20, 20)
    assert (search.look("b", 30, 50), search.compared) == (30, 10)
    search.compared = 30
    assert (search.look("b", 30, 60), search.compared) == (30, 30)
    assert (search.look("b", 70, 80), search.compared) == (50, 30)
    search.compared = 50
    assert search.look("b", 90, 90) <= search.compared


def test_what_is_stored_anew_in_the_place_of_lost_messages_is_compared() -> None:
    search = passed()
    search.look("a", 100, 100)
    assert (search.look("b", 100, 95), search.compared) == (95, 10)
    search.compared = 95
    assert (search.look("b", 100, 105), search.compared) == (100, 95)


def test_a_consumer_that_was_set_back_is_compared_from_there() -> None:
    search = passed()
    search.look("a", 20, 20)
    search.look("b", 5, 20)
    assert search.compared == 5


def test_no_missed_messages_are_reported_for_a_stream_that_replaces_them() -> None:
    assert find_missed(BEFORE, replace(BEFORE, first_seq=41, pending=10, replaces=True)) is None
