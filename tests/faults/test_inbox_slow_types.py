"""Failing messages hold no places: healthy ones behind them are handled within seconds; nothing is lost."""

import uuid
from collections.abc import Callable

import pytest

from tests.support.handlers import answer
from tests.support.jetstream import store
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

QUICK = {"handler_concurrency": 10, "handler_slow_after": 5, "handler_slow_failures_per_second": 20}


def taken(at: Site, messages: list[str]) -> Callable[[], bool]:
    return lambda: set(messages) <= set(at.effects.taken)


@pytest.mark.fault("N19")
@pytest.mark.parametrize("status", [422, 503])
async def test_healthy_messages_behind_failing_ones_are_handled_within_seconds(
    site_with: SiteWith, status: int
) -> None:
    async with site_with(consumer={"max_ack_pending": 10}, **QUICK) as at:
        bad, good = await at.send(60), await at.send(20)
        at.effects.script |= dict.fromkeys(bad, answer(status))
        async with at.worker() as worker:
            await eventually(taken(at, good), what="the healthy messages are handled")
            if status != 422:
                at.effects.script.clear()
            await at.quiet()
            if status != 422:  # nothing took a rejected one: its type stays slow for a while
                await worker.ready()
        await at.audit(dead_lettered=frozenset(bad if status == 422 else ()))
        assert all(at.effects.calls[message] == 1 for message in good)


@pytest.mark.fault("N19")
async def test_a_failing_event_type_stops_no_other(site_with: SiteWith) -> None:
    """And what the server gave up meanwhile, because it came so often, is handled like the rest."""
    async with site_with(consumer={"max_ack_pending": 10, "max_deliver": 16}, **QUICK) as at:
        bad = await at.send(30)
        at.effects.script |= dict.fromkeys(bad, answer(503))
        async with at.worker(inbox_backoff_max_seconds=0.2) as worker:
            await worker.answers(503, "made: the handler answered 503")
            for _ in range(3):
                other = f"{at.target.upstream}.event.renamed.v1"
                before = sum(at.effects.taken.values())
                await store(at.broker, other, headers={"Nats-Msg-Id": str(uuid.uuid4())})
                await eventually(
                    lambda before=before: sum(at.effects.taken.values()) > before, what="it is handled"
                )
            await worker.answers(200, "event type made")
            at.effects.script.clear()
            await eventually(taken(at, bad), what="all are handled once the handler is mended")
            await at.quiet()
        assert not await at.dead_letters()


@pytest.mark.fault("N19")
async def test_an_operator_ends_the_slow_pace_of_a_running_worker(shared: Site) -> None:
    """The handler is mended, and nothing would be asked about again for minutes."""
    messages = await shared.send(20)
    shared.effects.script |= dict.fromkeys(messages, answer(429, retry_after="1"))
    slow = {"handler_slow_after": 5, "handler_slow_failures_per_second": 0.01}
    async with shared.worker(inbox_backoff_max_seconds=600, **slow) as worker:
        await worker.tells("type_slowed")
        await eventually(lambda: set(shared.effects.calls) == set(messages), what="all are asked about")
        shared.effects.script.clear()
        resume = ("inbox", "resume", "--type", "made", "--reason", "mended")
        async with shared.worker(*resume, name="operator") as command:
            assert await command.ended() == 0
        await shared.quiet()
    await shared.audit()
