"""The meaning of the server's answers, field by field."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo

CREATED = "2026-11-01T00:00:00.123456789Z"
NEVER = "0001-01-01T00:00:00Z"
LATER = datetime(2026, 11, 2, tzinfo=UTC)


def stream(config: dict[str, Any] | None = None, **state: Any) -> StreamInfo:
    """Parse a stream's answer, which is empty but for ``state``."""
    held = {"messages": 0, "bytes": 0, "first_seq": 0, "first_ts": NEVER, "last_seq": 0, "last_ts": NEVER}
    answer = {"created": CREATED, "ts": "2026-11-02T00:00:00Z", "config": config or {}, "state": held | state}
    return StreamInfo.from_json("S", answer, local_time=LATER.timestamp() - 2.0)


def consumer(config: dict[str, Any], **given: Any) -> ConsumerInfo:
    """Parse the answer of a consumer that has delivered nothing."""
    nothing = {"consumer_seq": 0, "stream_seq": 0}
    counts = {"num_pending": 0, "num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0}
    answer = {"name": "c", "created": CREATED, "delivered": nothing, "ack_floor": nothing, "config": config}
    return ConsumerInfo.from_json("S", answer | counts | given)


def test_an_empty_stream_begins_behind_its_last_message() -> None:
    fresh, purged = stream(), stream(last_seq=5, first_seq=6, last_ts="2026-11-01T08:00:00Z")
    assert (fresh.first_seq, fresh.first_time) == (1, None)
    assert (purged.first_seq, purged.first_time) == (6, None)


def test_the_server_clock_is_compared_with_this_machine() -> None:
    assert (stream().now, stream().clock_offset_seconds) == (LATER, 2.0)


@pytest.mark.parametrize(
    ("config", "volatile"),
    [({"storage": "file"}, False), ({"storage": "memory"}, True), ({"persist_mode": "async"}, True)],
)
def test_a_stream_that_acknowledges_before_it_stores_is_volatile(
    config: dict[str, Any], *, volatile: bool
) -> None:
    assert stream(config).volatile is volatile


@pytest.mark.parametrize(
    ("config", "wanted"), [({}, True), ({"filter_subject": "a.*"}, True), ({"filter_subjects": ["b"]}, False)]
)
def test_a_consumer_wants_what_a_filter_covers(config: dict[str, Any], *, wanted: bool) -> None:
    assert consumer(config).wants("a.b") is wanted


def test_the_first_backoff_takes_the_place_of_ack_wait() -> None:
    assert consumer({"ack_wait": 30_000_000_000}).ack_wait_seconds == 30.0
    assert consumer({"ack_wait": 30_000_000_000, "backoff": [1_000_000_000]}).ack_wait_seconds == 1.0


def test_a_pause_counts_while_it_lasts() -> None:
    paused = consumer({"pause_until": CREATED}, paused=True, pause_remaining=2_000_000_000)
    assert (paused.is_paused, paused.paused_seconds, paused.pause_until) == (True, 2.0, CREATED)
    assert consumer({}, pause_remaining=2_000_000_000).paused_seconds == 0.0


@pytest.mark.parametrize(
    ("config", "unfit"),
    [
        ({}, ""),
        ({"max_expires": 10**8}, ""),
        ({"max_expires": 10**8 - 1}, "max_expires is 99999999"),
        ({"ack_policy": "all"}, "ack_policy is all"),
        ({"deliver_subject": "x"}, "deliver_subject is x"),
        ({"headers_only": True}, "headers_only is True"),
        ({"priority_policy": "overflow", "priority_groups": ["g"]}, "priority_policy is overflow"),
    ],
)
def test_a_consumer_is_unfit_that_lets_no_pull_request_through_or_omits_something(
    config: dict[str, Any], unfit: str
) -> None:
    assert consumer({"ack_policy": "explicit"} | config).unfit == unfit
