"""The InboxRepository contract (PORT-047-002), over the in-memory fake and over PostgreSQL."""

import uuid
from typing import Any

import pytest

from sea_mq_worker.inbox.message import (
    AlreadySettled,
    ContentConflict,
    GivenBack,
    InboxMessage,
    Lease,
    LeasedElsewhere,
    Receipt,
)
from sea_mq_worker.ports import InboxRepository
from tests.support import inboxes
from tests.support.inboxes import LEASE, Row, World, entry, insert, lease

HOUR = 3600.0

world = inboxes.world


async def dead_letter(inbox: InboxRepository, run: Lease) -> None:
    assert await inbox.begin_dead_letter(run, reason="REJECTED", detail="422")
    assert await inbox.mark_dead_lettered([run])


def kinds(receipts: list[Receipt]) -> list[type]:
    return [type(receipt) for receipt in receipts]


# --- receiving


@pytest.mark.clause("CMD-051", "PORT-047-002")
async def test_new_messages_are_leased_and_their_attempt_counted(world: World) -> None:
    first, second = entry(), entry()

    one, two = await insert(world.inbox(), first, second)

    assert isinstance(one, Lease)
    assert isinstance(two, Lease)
    assert (one.message_id, two.message_id) == (first.message_id, second.message_id)
    assert (one.attempts, one.dead_letter_begun_seconds_ago) == (1, 0.0)
    assert await world.row(first.message_id) == Row(
        attempts=1, last_error=None, processed=False, leased=True, reason=None, dead_lettered=False,
        consumer="sea__from_vibespro",
    )  # fmt: skip


@pytest.mark.clause("terms-07", "CMD-051-idempotency", "PORT-047-002")
async def test_a_processed_message_is_never_handled_again(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    assert await inbox.mark_processed_batch([run]) == {one.message_id}

    await world.pass_time(10 * LEASE)

    [known] = await insert(inbox, one._replace(consumer="another"))
    assert isinstance(known, AlreadySettled)
    assert known.consumer == "sea__from_vibespro"
    row = await world.row(one.message_id)
    assert (row.processed, row.leased, row.attempts) == (True, False, 1)


@pytest.mark.clause("CMD-051-idempotency")
async def test_a_message_whose_worker_died_is_handled_again_once_its_lease_is_over(world: World) -> None:
    one = entry()
    await lease(world.inbox("died"), one)

    assert await insert(world.inbox("heir"), one) == [LeasedElsewhere()]
    await world.pass_time(LEASE + 1)
    again = await lease(world.inbox("heir"), one)

    assert again.attempts == 2


async def test_a_lost_row_loses_its_lease_and_is_recorded_again(world: World) -> None:
    inbox, one = world.inbox(), entry()
    lost = await lease(inbox, one)
    await world.lose(one.message_id)

    assert await inbox.extend([lost], lease_seconds=LEASE) == frozenset()
    assert await inbox.mark_processed_batch([lost]) == frozenset()
    assert await inbox.record_error_batch([(lost, GivenBack("503", counted=True))]) == frozenset()
    again = await lease(inbox, one)

    assert (again.attempts, again != lost) == (1, True)
    assert await inbox.mark_processed_batch([again]) == {one.message_id}


async def test_receipts_keep_the_order_of_their_entries(world: World) -> None:
    inbox = world.inbox()
    done, busy, conflicting = entry(), entry(), entry()
    run = await lease(inbox, done)
    await inbox.mark_processed_batch([run])
    await insert(inbox, busy, conflicting)
    other = entry(conflicting.message_id, body=b"[]")

    receipts = await insert(inbox, entry("f" * 8 + "-ffff" * 4 + "f" * 8), other, done, busy, entry())

    assert kinds(receipts) == [Lease, ContentConflict, AlreadySettled, LeasedElsewhere, Lease]


@pytest.mark.clause("POL-047-003")
async def test_of_equal_ids_in_a_batch_the_first_is_leased(world: World) -> None:
    one, processed = entry(), entry()
    inbox = world.inbox()
    await inbox.mark_processed_batch([await lease(inbox, processed)])

    receipts = await insert(inbox, one, one, entry(one.message_id, body=b"[]"), processed, processed)

    assert kinds(receipts) == [Lease, LeasedElsewhere, ContentConflict, AlreadySettled, AlreadySettled]
    assert (await world.row(one.message_id)).attempts == 1


@pytest.mark.parametrize("ending", ["processed", "dead-lettered", "leased", "free"])
async def test_a_known_id_with_another_content_is_a_conflict_and_changes_nothing(
    world: World, ending: str
) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    if ending == "processed":
        await inbox.mark_processed_batch([run])
    elif ending == "dead-lettered":
        await dead_letter(inbox, run)
    elif ending == "free":
        await inbox.record_error_batch([(run, GivenBack("503", counted=True))])
    before = await world.row(one.message_id)

    other = entry(one.message_id, body=b"[]")
    receipts = await insert(inbox, other, one)

    assert receipts == [ContentConflict(), LeasedElsewhere()]
    assert await world.row(one.message_id) == before


async def test_a_row_written_by_hand_takes_the_first_content_that_comes(world: World) -> None:
    inbox, one = world.inbox(), entry()
    await world.write_by_hand(one.message_id)

    run = await lease(inbox, one)

    assert run.attempts == 1
    assert (await world.row(one.message_id)).consumer == "sea__from_vibespro"
    assert await insert(inbox, entry(one.message_id, body=b"[]")) == [ContentConflict()]


async def test_a_message_that_comes_by_two_consumers_is_one_message(world: World) -> None:
    inbox, one = world.inbox(), entry()
    await lease(inbox, one)

    other = entry(one.message_id, consumer="other", stream="O", stream_seq=1)
    assert await insert(inbox, other) == [LeasedElsewhere()]
    assert (await world.row(one.message_id)).consumer == "sea__from_vibespro"
    await world.pass_time(LEASE + 1)
    await lease(inbox, other)
    assert (await world.row(one.message_id)).consumer == "other"


# --- what nobody works on


async def old(world: World, after: str = "", limit: int = 10, older: float = 100.0) -> list[InboxMessage]:
    found = await world.inbox().overdue(
        stream="VIBESPRO_EVENTS",
        consumer="sea__from_vibespro",
        older_than_seconds=older,
        lease_seconds=LEASE,
        after=after,
        limit=limit,
    )
    return list(found)


async def overdue(world: World, **given: Any) -> list[str]:
    return [found.message_id for found in await old(world, **given)]


async def test_old_messages_without_an_ending_are_found_by_age_page_by_page(world: World) -> None:
    inbox = world.inbox()
    entries = [entry(stream_seq=seq) for seq in range(1, 4)]
    for one in (entries[0]._replace(stream_seq=99), *entries):
        run = await lease(inbox, one)
        await inbox.record_error_batch([(run, GivenBack("500", counted=True))])
        await world.pass_time(50 if one in entries else 0)
    await world.pass_time(51)

    first, second, third = [one.message_id for one in entries]
    assert await overdue(world) == [first, second, third]
    assert await overdue(world, older=120) == [first, second]
    assert await overdue(world, limit=2) == [first, second]
    assert await overdue(world, after=second) == [third]
    assert await overdue(world, after=third) == []
    assert await old(world, older=120, limit=1) == entries[:1]


async def test_messages_that_were_recorded_together_are_found_on_whichever_page(world: World) -> None:
    together = [entry() for _ in range(2)]
    await insert(world.inbox(), *together)
    await world.pass_time(101)
    first, second = sorted(one.message_id for one in together)
    assert await overdue(world, limit=1) == [first]
    assert await overdue(world, after=first) == [second]


async def test_messages_that_are_settled_leased_or_of_others_are_not_overdue(world: World) -> None:
    inbox = world.inbox()
    processed, dead, other = entry(), entry(), entry(consumer="other")
    await inbox.mark_processed_batch([await lease(inbox, processed)])
    await dead_letter(inbox, await lease(inbox, dead))
    await lease(inbox, other)
    await world.write_by_hand(str(uuid.uuid4()))
    await world.pass_time(LEASE + 200)
    leased = entry()
    await lease(inbox, leased)
    held = await lease(inbox, entry())

    assert await overdue(world) == []
    await world.pass_time(LEASE + 101)
    await inbox.extend([held], lease_seconds=LEASE)
    assert await overdue(world) == [leased.message_id]


# --- leases


async def test_an_expired_lease_counts_until_another_worker_takes_it(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    await world.pass_time(10 * LEASE)

    assert await inbox.mark_processed_batch([run]) == {one.message_id}


@pytest.mark.parametrize("by", ["w1", "w2"])
async def test_who_was_too_slow_changes_nothing(world: World, by: str) -> None:
    """Also where the same worker took the message again: the token is the insert's, not the worker's."""
    slow, one, other = world.inbox("w1"), entry(), entry()
    late = await lease(slow, one)
    await world.pass_time(LEASE + 1)
    await world.inbox(by).begin_dead_letter(await lease(world.inbox(by), one), reason="R", detail="")
    before = await world.row(one.message_id)
    own = await lease(slow, other)

    assert await slow.extend([late, own], lease_seconds=LEASE) == {other.message_id}
    assert await slow.record_error_batch([(late, GivenBack("late", counted=True))]) == frozenset()
    assert await slow.begin_dead_letter(late, reason="REJECTED", detail="") == frozenset()
    assert await slow.mark_dead_lettered([late]) == frozenset()
    assert await slow.mark_processed_batch([late, own]) == {other.message_id}
    assert await world.row(one.message_id) == before


@pytest.mark.parametrize("ending", ["processed", "dead-lettered"])
async def test_a_settled_message_is_settled_for_good(world: World, ending: str) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    if ending == "processed":
        await inbox.mark_processed_batch([run])
    else:
        await dead_letter(inbox, run)
    before = await world.row(one.message_id)

    assert await inbox.mark_processed_batch([run]) == frozenset()
    assert await inbox.record_error_batch([(run, GivenBack("e", counted=True))]) == frozenset()
    assert await inbox.begin_dead_letter(run, reason="R", detail="") == frozenset()
    assert await inbox.mark_dead_lettered([run]) == frozenset()
    assert await inbox.extend([run], lease_seconds=LEASE) == frozenset()
    assert await world.row(one.message_id) == before


async def test_nothing_is_written_for_nothing_or_an_unknown_message(world: World) -> None:
    inbox = world.inbox()
    unknown = Lease(message_id=str(uuid.uuid4()), token="nobody's")

    assert await insert(inbox) == []
    assert await inbox.mark_processed_batch([]) == frozenset()
    assert await inbox.record_error_batch([]) == frozenset()
    assert await inbox.mark_processed_batch([unknown]) == frozenset()


# --- a clock that is set back while leases are held


async def test_a_lease_that_ends_later_than_any_could_is_over(world: World) -> None:
    one = entry()
    await lease(world.inbox("died"), one)

    await world.pass_time(-LEASE / 2)
    assert await insert(world.inbox("heir"), one) == [LeasedElsewhere()]
    assert await overdue(world) == []
    await world.pass_time(-HOUR)

    assert await overdue(world) == [one.message_id]
    assert (await lease(world.inbox("heir"), one)).attempts == 2
    assert await insert(world.inbox("third"), one) == [LeasedElsewhere()]


async def test_a_heartbeat_keeps_a_lease_that_was_taken_under_a_clock_ahead(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    await world.pass_time(-HOUR)

    assert await inbox.extend([run], lease_seconds=LEASE) == {one.message_id}

    assert await insert(world.inbox("w2"), one) == [LeasedElsewhere()]
    assert await overdue(world) == []
    await world.pass_time(LEASE + 1)
    assert (await lease(world.inbox("w2"), one)).attempts == 2


async def test_a_message_received_in_the_future_is_overdue_without_a_lease(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    await inbox.record_error_batch([(run, GivenBack("500", counted=True))])
    assert await overdue(world) == []

    await world.pass_time(-HOUR)

    assert await overdue(world) == [one.message_id]


# --- handlings without an effect


@pytest.mark.clause("PORT-047-002")
async def test_an_error_frees_the_message_and_spends_its_attempt(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)

    assert await inbox.record_error_batch([(run, GivenBack("503 " + "x" * 3000, counted=True))])

    row = await world.row(one.message_id)
    assert (row.attempts, row.leased, row.processed) == (1, False, False)
    assert row.last_error == "503 " + "x" * 1996
    assert (await lease(world.inbox("w2"), one)).attempts == 2


async def test_what_is_not_counted_gives_its_attempt_back(world: World) -> None:
    inbox, one, two = world.inbox(), entry(), entry()
    runs = [await lease(inbox, one), await lease(inbox, two)]

    await inbox.record_error_batch([(run, GivenBack(str(n), counted=n == 1)) for n, run in enumerate(runs)])

    rows = [await world.row(message.message_id) for message in (one, two)]
    assert [(row.attempts, row.last_error) for row in rows] == [(0, "0"), (1, "1")]


async def test_success_clears_the_error(world: World) -> None:
    inbox, one = world.inbox(), entry()
    first = await lease(inbox, one)
    await inbox.record_error_batch([(first, GivenBack("503", counted=True))])

    await inbox.mark_processed_batch([await lease(inbox, one)])

    assert (await world.row(one.message_id)).last_error is None


# --- dead letters


@pytest.mark.clause("CMD-052")
async def test_a_dead_lettered_message_is_done(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)

    assert await inbox.begin_dead_letter(run, reason="REJECTED", detail="422") == {one.message_id}
    assert await insert(world.inbox("w2"), one) == [LeasedElsewhere()]
    assert await inbox.mark_dead_lettered([run]) == {one.message_id}

    assert await insert(inbox, one) == [AlreadySettled()]
    assert await world.row(one.message_id) == Row(
        attempts=1, last_error="REJECTED: 422", processed=False, leased=False, reason="REJECTED",
        dead_lettered=True, consumer="sea__from_vibespro",
    )  # fmt: skip


@pytest.mark.clause("CMD-052-idempotency")
async def test_the_next_lease_of_an_unfinished_dead_letter_has_its_earliest_time(world: World) -> None:
    inbox, one = world.inbox(), entry()
    for _ in range(2):
        run = await lease(inbox, one)
        await inbox.begin_dead_letter(run, reason="REJECTED", detail="422")
        await world.pass_time(LEASE + 40)

    third = await lease(inbox, one)

    assert third.attempts == 3
    assert third.dead_letter_begun_seconds_ago == pytest.approx(2 * (LEASE + 40), abs=5)


async def test_what_was_not_begun_is_not_dead_lettered(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)

    assert await inbox.mark_dead_lettered([run]) == frozenset()
    assert (await world.row(one.message_id)).leased


async def test_a_message_may_still_be_processed_after_a_dead_letter_was_begun(world: World) -> None:
    inbox, one = world.inbox(), entry()
    run = await lease(inbox, one)
    await inbox.begin_dead_letter(run, reason="REJECTED", detail="422")

    assert await inbox.mark_processed_batch([run]) == {one.message_id}
