"""The OutboxRepository contract: what a worker that ended had claimed."""

from tests.support.outboxes import World, ids, published

GONE, OTHER = "9f3a00e1", "00c0ffee"


async def test_the_events_of_a_session_that_is_gone_are_due_at_once_and_have_failed_once(
    world: World,
) -> None:
    added = [await world.add(), await world.add(key="a")]
    for ordered in (False, True):
        await world.relay("dead", ordered=ordered, session=GONE).find_unpublished(batch_max=9)
    heir = world.relay("heir", session=OTHER)

    assert await heir.take_over(GONE) == 2

    for event_id in added:
        row = await world.row(event_id)
        assert (row.state, row.claimed, row.failures, row.attempts) == ("PENDING", False, 1, 1)
        assert "dead" in (row.error or "")
        assert GONE not in (row.error or "")
    assert ids(await heir.find_unpublished(batch_max=9)) == added[:1]
    assert ids(await world.relay(ordered=True).find_unpublished(batch_max=9)) == added[1:]
    assert await heir.take_over(GONE) == 0


async def test_the_events_of_a_session_that_lives_are_left_alone(world: World) -> None:
    await world.add()
    living = world.relay("living", session=GONE)
    claim = await living.find_unpublished(batch_max=9)

    async with world.session_held(GONE):
        assert await world.relay("heir", session=OTHER).take_over(GONE) == 0

    assert len(await living.mark_published_batch(claim, published(claim))) == 1


async def test_no_other_events_are_taken_over(world: World) -> None:
    """Neither those of another session, nor those of a worker that has no session."""
    for session in (OTHER, ""):
        await world.add()
        await world.relay(GONE, session=session).find_unpublished(batch_max=1)

    assert await world.relay("heir").take_over(GONE) == 0


async def test_an_event_whose_workers_end_again_and_again_is_dead_at_last(world: World) -> None:
    event_id = await world.add()
    for nth in range(1, 4):
        await world.make_due(event_id)
        worker = world.relay(f"w{nth}", session=f"0000000{nth}", failures_max=3)
        assert ids(await worker.find_unpublished(batch_max=9)) == [event_id]
        assert await worker.take_over(f"0000000{nth}") == 1
    row = await world.row(event_id)
    assert (row.state, row.failures) == ("DEAD", 3)
