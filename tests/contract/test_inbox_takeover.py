"""The InboxRepository contract: what a worker that ended had leased."""

from sea_mq_worker.inbox.message import AbandonedDelivery, LeasedElsewhere
from tests.support import inboxes
from tests.support.inboxes import World, entry, insert, lease

GONE, OTHER = "9f3a00e1", "00c0ffee"

world = inboxes.world


async def test_the_leases_of_a_session_that_is_gone_end_and_name_their_deliveries(world: World) -> None:
    one = entry(reply="$JS.ACK.x.1")
    await lease(world.inbox("dead", GONE), one)
    heir = world.inbox("heir", OTHER)

    assert await heir.take_over(GONE) == [AbandonedDelivery(one.stream, one.consumer, "$JS.ACK.x.1", 1)]

    assert not (await world.row(one.message_id)).leased
    assert (await lease(heir, one)).attempts == 2
    assert await heir.take_over(GONE) == []


async def test_the_leases_of_a_session_that_lives_hold(world: World) -> None:
    one = entry()
    await lease(world.inbox("living", GONE), one)
    heir = world.inbox("heir", OTHER)

    async with world.session_held(GONE):
        assert await heir.take_over(GONE) == []

    [receipt] = await insert(heir, one)
    assert isinstance(receipt, LeasedElsewhere)


async def test_neither_other_sessions_nor_settled_messages_are_taken_over(world: World) -> None:
    for session in (OTHER, ""):
        await lease(world.inbox(GONE, session), entry())
    dead = world.inbox("dead", GONE)
    done = await lease(dead, entry())
    await dead.mark_processed_batch([done])

    assert await world.inbox("heir").take_over(GONE) == []
