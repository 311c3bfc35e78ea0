"""Messages that a consumer was never given, found by two checks of its progress."""

from dataclasses import replace

import pytest

from sea_mq_worker.domain.missed_messages import ConsumerStanding, MissedMessages, find_missed

BEFORE = ConsumerStanding(
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
    assert find_missed(BEFORE, now) == MissedMessages(11, 40, 30)


def test_what_a_purge_took_is_counted_although_the_server_moves_the_consumer_on() -> None:
    now = replace(BEFORE, first_seq=81, last_seq=80, delivered=80, pending=0)
    assert find_missed(BEFORE, now) == MissedMessages(11, 80, 70)


def test_what_was_delivered_before_it_left_is_not_missed() -> None:
    now = replace(BEFORE, first_seq=61, last_seq=70, delivered=70, deliveries=75, pending=0)
    assert find_missed(BEFORE, now) is None


def test_what_is_delivered_again_makes_the_count_too_low_and_never_too_high() -> None:
    now = replace(BEFORE, first_seq=41, delivered=45, deliveries=18, pending=5)
    assert find_missed(BEFORE, now) == MissedMessages(11, 40, 27)


def test_of_a_filtered_consumer_only_what_was_pending_can_be_missed() -> None:
    before = replace(BEFORE, takes_all=False, pending=3)
    assert find_missed(before, replace(before, first_seq=200, last_seq=300, pending=0)) == MissedMessages(
        11, 199, 3
    )
    assert find_missed(replace(before, pending=0), replace(before, first_seq=200, pending=0)) is None


@pytest.mark.parametrize(("takes_all", "found"), [(True, MissedMessages(11, 20, 10)), (False, None)])
def test_at_the_first_look_the_stream_may_begin_behind_what_was_delivered(
    *, takes_all: bool, found: MissedMessages | None
) -> None:
    assert find_missed(None, replace(BEFORE, first_seq=21, pending=30, takes_all=takes_all)) == found


def test_pending_messages_are_missed_when_their_stream_is_recreated() -> None:
    now = replace(BEFORE, stream_created="2025-02-01", consumer_created="2025-02-01", last_seq=5, pending=5)
    assert find_missed(BEFORE, now) == MissedMessages(11, 50, 40)


def test_a_recreated_durable_reports_no_messages_that_left_before() -> None:
    now = replace(BEFORE, consumer_created="2025-02-01", first_seq=31, delivered=30, deliveries=0, pending=20)
    assert find_missed(BEFORE, now) == MissedMessages(11, 30, 20)
    assert find_missed(BEFORE, replace(now, delivered=50, pending=0)) == MissedMessages(11, 30, 20)
    filtered = replace(BEFORE, takes_all=False, pending=10)
    now = replace(now, takes_all=False, delivered=45, deliveries=4, pending=2)
    assert find_missed(filtered, now) == MissedMessages(11, 30, 4)


def test_no_missed_messages_are_reported_for_a_stream_that_replaces_them() -> None:
    assert find_missed(BEFORE, replace(BEFORE, first_seq=41, pending=10, replaces=True)) is None
