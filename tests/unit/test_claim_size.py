"""A claim takes as many events as find room in memory, and all claims in hand share that room."""

import asyncio

from sea_mq_worker.outbox.event import NOTHING_CLAIMED, Claim
from sea_mq_worker.outbox.pace import ClaimSize, MemoryBudget
from tests.support.builders import claimed_event
from tests.support.simulation import in_virtual_time


def claim(events: int, *, cut: bool) -> Claim:
    taken = (claimed_event(),) * events
    return Claim(token="t", at=NOTHING_CLAIMED.at, events=taken, more=True, cut=cut)


def test_it_asks_for_twice_what_the_bytes_let_it_have_and_grows_again() -> None:
    size = ClaimSize(events_max=1000, bytes_max=8000)
    asked = [size.events]
    for taken in (claim(16, cut=True), claim(8, cut=True), *[claim(1, cut=False)] * 7):
        size.update(taken)
        asked.append(size.events)
    assert asked == [1000, 32, 16, 32, 64, 128, 256, 512, 1000, 1000]


def test_after_time_outs_it_asks_for_half_down_to_one_and_grows_again() -> None:
    size = ClaimSize(events_max=9, bytes_max=8)
    asked = []
    for _ in range(5):
        size.halve()
        asked.append((size.events, size.bytes))
    assert asked == [(4, 4), (2, 2), (1, 1), (1, 1), (1, 1)]
    for _ in range(4):
        size.update(NOTHING_CLAIMED)
    assert (size.events, size.bytes) == (9, 8)


@in_virtual_time
async def test_room_is_given_in_turn_and_never_twice() -> None:
    room, got = MemoryBudget(10), []

    async def take(wanted: int) -> None:
        await room.take(wanted)
        got.append(wanted)

    async with asyncio.TaskGroup() as group:
        for wanted in (4, 8, 1):
            group.create_task(take(wanted))
        await asyncio.sleep(1)
        assert got == [4]
        room.give_back(-3)  # what was taken came to more
        room.give_back(4)
        await asyncio.sleep(1)
        assert got == [4]
        room.give_back(1)
        await asyncio.sleep(1)
        assert got == [4, 8]
        room.give_back(8)
    assert got == [4, 8, 1]
