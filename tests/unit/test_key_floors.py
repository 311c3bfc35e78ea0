"""From where on a claim has to read a busy key, by the transactions that ran when its events were claimed."""

import json
from datetime import UTC, datetime, timedelta

from sea_mq_worker.outbox.floors import KeyFloors

START = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = 151
"""More than make a key busy."""


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def busy(key: str = "a", *, running: frozenset[str] = frozenset()) -> KeyFloors:
    """Claim and publish a key's events, ten a second, of which each has its tenth of a second as number."""
    floors = KeyFloors()
    for number in range(1, EVENTS + 1):
        floors.claimed(at(number / 10), [number], running)
        floors.published(at(number / 10), [(key, number)])
    return floors


def of(floors: KeyFloors, key: str = "a") -> int | None:
    given: dict[str, int] = json.loads(str(floors.bind()["floors"]))
    return given.get(key)


def test_a_floor_is_three_seconds_behind_the_claim() -> None:
    floors = busy()
    last = EVENTS / 10
    floors.claimed(at(last + 1), [], ())
    assert of(floors) == EVENTS - 30


def test_a_floor_rises_with_the_next_events_and_never_above_what_is_published() -> None:
    floors = busy()
    floors.claimed(at(60), [EVENTS + 1, EVENTS + 2], ())
    floors.published(at(60), [("a", EVENTS + 1)])
    floors.claimed(at(61), [], ())
    assert of(floors) == EVENTS
    floors.claimed(at(90), [EVENTS + 3], ())
    floors.published(at(90), [("a", EVENTS + 3)])
    floors.claimed(at(91), [], ())
    assert of(floors) == EVENTS + 2


def test_a_key_with_few_events_has_no_floor() -> None:
    floors = busy()
    floors.published(at(15), [("b", EVENTS)])
    floors.claimed(at(16), [], ())
    assert of(floors, "b") is None


def test_a_key_is_read_from_its_first_event_after_one_was_given_back() -> None:
    floors = busy()
    floors.forget(["a"])
    floors.claimed(at(16), [], ())
    assert of(floors) is None


def test_an_old_transaction_is_passed_with_a_number_below_what_it_may_have_inserted() -> None:
    floors = busy(running=frozenset({"7"}))
    given = floors.bind()
    assert (given["running"], given["running_from"]) == (["7"], [-(2**63)])
    floors.claimed(at(20), [200], ("7", "9"))
    floors.claimed(at(23), [201], ("7", "9"))
    assert (
        dict(zip(*(floors.bind()[name] for name in ("running", "running_from")), strict=True))["9"] == EVENTS
    )


def test_the_end_of_an_old_transaction_lowers_every_floor_below_what_it_may_have_inserted() -> None:
    floors = busy()
    floors.claimed(at(16), [160], ("7",))
    for number in range(170, 260, 10):
        floors.claimed(at(number / 10), [number], ("7",))
        floors.published(at(number / 10), [("a", number)])
    assert (of(floors) or 0) > EVENTS
    floors.claimed(at(26), [260], ())
    assert of(floors) == 126


def test_a_claim_from_before_the_end_of_an_old_transaction_raises_no_floor_above_it() -> None:
    floors = busy()
    for number in range(160, 300, 10):
        floors.claimed(at(number / 10), [number], ("7",))
    floors.claimed(at(30), [300], ())
    floors.published(at(29), [("a", 290)])
    floors.claimed(at(31), [], ())
    assert of(floors) == 126
    floors.published(at(31), [("a", 300)])
    floors.claimed(at(32), [], ())
    assert of(floors) == 280


def test_a_clock_that_was_set_back_ends_all_floors() -> None:
    floors = busy()
    floors.claimed(at(-5), [EVENTS + 1], ())
    assert of(floors) is None
    floors.published(at(14), [("a", EVENTS)])
    assert of(floors) is None


def test_the_keys_that_are_remembered_are_those_published_last() -> None:
    floors = busy()
    floors.published(at(15), [(f"other-{number}", EVENTS) for number in range(20_000)])
    floors.claimed(at(16), [], ())
    assert of(floors) is None
