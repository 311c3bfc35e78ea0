"""The outbound loop among events that are large, and claims that take long."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sea_mq_worker.errors import StoreTooSlowError
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.event import Claim, EventState
from tests.support.simulation import in_virtual_time
from tests.unit.test_outbox_publisher import LEASE, World


@in_virtual_time
async def test_a_claim_that_cannot_be_read_in_time_is_asked_for_in_half_the_size() -> None:
    world = World()
    for number in range(40):
        world.table.add(str(number))
    find, asked = world.outbox.find_unpublished, []

    async def find_few(*, batch_max: int, **limits: int) -> Claim:
        asked.append(batch_max)
        if batch_max > 3 and len(asked) < 20:
            raise StoreTooSlowError("too slow")
        found: Claim = await find(batch_max=batch_max, **limits)
        return found

    world.outbox.find_unpublished = find_few
    async with world.relaying():
        await world.published(40)
    assert asked[:8] == [10, 5, 2, 4, 2, 4, 2, 4]
    assert asked[-1] == 10, "it grows again"


@in_virtual_time
async def test_a_claim_that_took_longer_to_read_than_to_publish_is_published() -> None:
    world = World()
    world.table.add("a")
    find = world.outbox.find_unpublished

    async def find_slowly(**limits: int) -> Claim:
        found: Claim = await find(**limits)
        await asyncio.sleep(15)
        return found

    world.outbox.find_unpublished = find_slowly
    async with world.relaying():
        await world.published(1)
    assert world.row("a").attempts == 1


@in_virtual_time
async def test_what_can_never_be_sent_is_dead_although_its_time_is_over_and_the_rest_is_given_back() -> None:
    world = World()
    world.table.add("wildcard", event_type="*")
    world.table.add("large", payload=b"x" * (2**20 - 100))  # fits without its headers
    world.table.add("good")
    find, claims = world.outbox.find_unpublished, []

    async def find_too_late(**limits: int) -> Claim:
        found: Claim = await find(**limits)
        claims.append(found)
        if len(claims) == 1:
            await asyncio.sleep(LEASE - 1)
        return found

    world.outbox.find_unpublished = find_too_late
    async with world.relaying():
        await world.published(1)
    assert world.states() == {"wildcard": "DEAD", "large": "DEAD", "good": "PUBLISHED"}
    assert [len(claim.events) for claim in claims if claim.events] == [3, 1]
    assert world.sent == ["good"]


@in_virtual_time
async def test_an_event_released_repeatedly_is_logged_at_a_bounded_rate() -> None:
    world = World()
    world.table.add("a")

    def lost(_claimed_at: float) -> bool:
        if world.row("a").attempts == 70:
            world.stop.set()
        return True

    await replace(world.lane(), session_lost_since=lost).run(world.stop)
    reported = [notice.text for notice in world.events.notices]
    assert [re.findall(r"claimed (\d+) times", text) for text in reported] == [["16"], ["32"], ["64"]]


@pytest.mark.parametrize("batches_max", [1, 8])
@in_virtual_time
async def test_all_claims_in_hand_share_their_room(batches_max: int) -> None:
    """However many there may be, no more than four of 1 MiB are in hand."""
    world = World()
    for number in range(64):
        world.table.add(str(number), payload=b"x" * 250_000)
    in_hand: list[int] = []
    publish_batch = world.publisher.publish_batch

    async def publish_slowly(messages: Sequence[OutboundMessage], **options: Any) -> Any:
        claimed = [row for row in world.table.rows.values() if row.state is EventState.CLAIMED]
        in_hand.append(sum(len(row.payload) for row in claimed))
        await asyncio.sleep(1)
        return await publish_batch(messages, **options)

    world.publisher.publish_batch = publish_slowly
    lane = replace(world.lane(), batches_max=batches_max)
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run(world.stop))
        await world.published(64)
        world.stop.set()
    assert max(in_hand) == min(batches_max, 4) * 1_000_000
