"""Faults of the relay, its servers and its links, caused while events are committed.

At the end of each fault, everything works and runs again.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kit.process import frozen
from kit.stage import MESSAGE_BYTES_MAX, Stage

_OUTAGE_SECONDS = 40.0
_SHORT_SECONDS = 2.0
_STALL_SECONDS = 6.0
_SOON_SECONDS = 0.3
_WINDOW_SECONDS = 8.0
_START_SECONDS_MAX = 60.0
_MOMENT_SECONDS = 0.001
_JITTER_SECONDS = 0.05
_PART_MIN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A description, the function that causes the fault, and whether it needs two relays."""

    text: str
    cause: Callable[[Stage, int, int], Awaitable[None]]
    two: bool = False


async def nothing(stage: Stage, events: int, _kills: int) -> None:
    """Let the relay work."""
    await stage.ledger.burst(events)


async def killed(stage: Stage, events: int, kills: int) -> None:
    """Kill the relay at random between a commit and the end of its work."""
    for part in _parts(events, kills):
        burst = await _begun(stage, part)
        await stage.relay.kill()
        await burst
        await stage.relay.start()


async def killed_unheard(stage: Stage, events: int, _kills: int) -> None:
    """Drop the relay's messages to the broker, then kill the relay."""
    stage.to_nats.drop_to_server()
    await stage.ledger.burst(events)
    await asyncio.sleep(_SHORT_SECONDS)
    await stage.relay.kill()
    stage.to_nats.heal()
    await stage.relay.start()


async def killed_unanswered(stage: Stage, events: int, _kills: int) -> None:
    """Drop the broker's acknowledgements, then kill the relay: the stream has the events."""
    stage.to_nats.drop_to_client()
    await _killed_on_the_way(stage, await _arriving(stage, events))
    stage.to_nats.heal()
    await stage.relay.start()


async def killed_unnoted(stage: Stage, events: int, _kills: int) -> None:
    """Disconnect the relay from the database while it sends, then kill it: it cannot record the result."""
    burst = await _arriving(stage, events)
    stage.to_postgres.drop_to_server()
    await _killed_on_the_way(stage, burst)
    stage.to_postgres.heal()
    await stage.relay.start()


async def killed_late(stage: Stage, events: int, _kills: int) -> None:
    """Do the same, and start the relay after the deduplication window of the stored events."""
    await stage.change_stream(duplicate_window=int(_WINDOW_SECONDS * 1e9))
    stage.to_nats.drop_to_client()
    await _killed_on_the_way(stage, await _arriving(stage, events))
    stage.to_nats.heal()
    await asyncio.sleep(_WINDOW_SECONDS + 1)
    await stage.relay.start()
    await stage.settled(stage.ledger.fault)
    await stage.change_stream()


async def stopped(stage: Stage, events: int, kills: int) -> None:
    """Stop the relay by SIGTERM during its work."""
    for part in _parts(events, max(1, kills // 2)):
        burst = await _begun(stage, part)
        stage.stops.append(await stage.relay.stop(within=stage.description.relay.grace_seconds))
        await burst
        await stage.relay.start()


async def two(stage: Stage, events: int, kills: int) -> None:
    """Run two relays, and kill either of them."""
    async with _second(stage):
        for part in _parts(events, max(2, kills // 2)):
            burst = await _begun(stage, part)
            victim = stage.chance.choice(stage.relays)
            await victim.kill()
            await burst
            await victim.start()


async def one_frozen(stage: Stage, events: int, _kills: int) -> None:
    """Freeze one of two relays until its leases have expired, then let it continue."""
    async with _second(stage):
        burst = await _arriving(stage, events)
        victim = stage.chance.choice(stage.relays)
        victim.send(signal.SIGSTOP)
        await burst
        await asyncio.sleep(stage.description.relay.lease_seconds + 1)
        victim.send(signal.SIGCONT)
        await stage.settled(stage.ledger.fault)


async def broker_killed(stage: Stage, events: int, _kills: int) -> None:
    """Kill the broker under load."""
    burst = await _arriving(stage, events)
    await stage.nats.kill()
    await burst
    await asyncio.sleep(_SHORT_SECONDS)
    await stage.nats.start()


async def broker_away(stage: Stage, events: int, _kills: int) -> None:
    """Stop the broker for a while; producers continue to commit."""
    await stage.nats.stop()
    await stage.ledger.burst(events)
    await asyncio.sleep(_OUTAGE_SECONDS)
    await stage.nats.start()


async def stream_full(stage: Stage, events: int, _kills: int) -> None:
    """Make the stream full for a while; producers continue to commit."""
    await stage.read()
    await stage.change_stream(discard="new", max_msgs=len(stage.stored) + events // 2)
    await stage.ledger.burst(events)
    await asyncio.sleep(_OUTAGE_SECONDS)
    await stage.change_stream()


async def broker_frozen(stage: Stage, events: int, _kills: int) -> None:
    """Freeze the broker: connections stay open, without responses."""
    async with frozen(stage.nats.pid):
        await stage.ledger.burst(events)
        await asyncio.sleep(_STALL_SECONDS)


async def broker_link(stage: Stage, events: int, kills: int) -> None:
    """Cut the connection to the broker repeatedly."""
    for part in _parts(events, kills):
        burst = await _begun(stage, part)
        stage.to_nats.cut()
        await burst


async def broker_mute(stage: Stage, events: int, _kills: int) -> None:
    """Drop the broker's responses for a while."""
    stage.to_nats.drop_to_client()
    await stage.ledger.burst(events)
    await asyncio.sleep(_STALL_SECONDS)
    stage.to_nats.heal()


async def database_killed(stage: Stage, events: int, _kills: int) -> None:
    """Crash the database during the relay's work."""
    await stage.ledger.burst(events // 2)
    await stage.postgres.kill()
    await asyncio.sleep(_SHORT_SECONDS)
    await stage.postgres.start()
    await stage.ledger.burst(events - events // 2)


async def database_link(stage: Stage, events: int, kills: int) -> None:
    """Cut the connection to the database repeatedly, then stall it once."""
    for part in _parts(events, kills):
        burst = await _begun(stage, part)
        stage.to_postgres.cut()
        await burst
    stage.to_postgres.stall()
    await asyncio.sleep(_STALL_SECONDS)
    stage.to_postgres.heal()


async def poison(stage: Stage, events: int, _kills: int) -> None:
    """Commit an event that is too large for the broker among others."""
    await stage.ledger.burst(events // 2)
    await stage.ledger.poison(2 * MESSAGE_BYTES_MAX)
    await stage.ledger.burst(events - events // 2)


# A fault that leaves an event behind comes last.
FAULTS: Mapping[str, Fault] = {
    "nothing": Fault(text="nothing fails", cause=nothing),
    "kill": Fault(text="kill -9 at random", cause=killed),
    "kill-unheard": Fault(text="kill -9, its messages did not arrive", cause=killed_unheard),
    "kill-unanswered": Fault(text="kill -9, the acknowledgement did not arrive", cause=killed_unanswered),
    "kill-late": Fault(text="the same, and down beyond the deduplication window", cause=killed_late),
    "kill-unnoted": Fault(text="kill -9, cut off from the database", cause=killed_unnoted),
    "term": Fault(text="SIGTERM at random", cause=stopped),
    "two": Fault(text="two at once, one killed", cause=two, two=True),
    "frozen": Fault(text="two at once, one frozen past its lease", cause=one_frozen, two=True),
    "broker-killed": Fault(text="broker killed", cause=broker_killed),
    "broker-away": Fault(text="broker down for 40 s", cause=broker_away),
    "stream-full": Fault(text="stream full for 40 s", cause=stream_full),
    "broker-frozen": Fault(text="broker frozen for 6 s", cause=broker_frozen),
    "broker-link": Fault(text="broker's connection cut", cause=broker_link),
    "broker-mute": Fault(text="broker's responses lost for 6 s", cause=broker_mute),
    "database-killed": Fault(text="database crashed", cause=database_killed),
    "database-link": Fault(text="database's connection cut, stalled", cause=database_link),
    "poison": Fault(text="an event too large to be sent", cause=poison),
}


@asynccontextmanager
async def _second(stage: Stage) -> AsyncIterator[None]:
    await stage.second.start()
    await asyncio.sleep(_SHORT_SECONDS)
    try:
        yield
    finally:
        await stage.second.stop(within=stage.description.relay.grace_seconds)


async def awake(stage: Stage) -> None:
    """Wait until the relay has sent an event, so that the next fault does not hit its start."""
    await stage.read()
    sent = len(stage.stored)
    await stage.ledger.burst(1)
    await stage.grown(since=sent, within=_START_SECONDS_MAX)


async def _arriving(stage: Stage, count: int) -> asyncio.Task[None]:
    """Begin to commit ``count`` events, and return when the broker has the first of them."""
    sent = len(stage.stored)
    burst = asyncio.create_task(stage.ledger.burst(count))
    await stage.grown(since=sent, within=_SHORT_SECONDS)
    return burst


async def _killed_on_the_way(stage: Stage, burst: asyncio.Task[None]) -> None:
    await asyncio.sleep(_SOON_SECONDS)
    await stage.relay.kill()
    await burst


async def _begun(stage: Stage, count: int) -> asyncio.Task[None]:
    """Begin to commit ``count`` events, and return at a random time before or shortly after the end."""
    await awake(stage)
    inserted = len(stage.ledger.events) + stage.chance.randint(1, count)
    burst = asyncio.create_task(stage.ledger.burst(count))
    while len(stage.ledger.events) < inserted and not burst.done():  # noqa: ASYNC110 - the ledger has no event
        await asyncio.sleep(_MOMENT_SECONDS)
    await asyncio.sleep(stage.chance.random() * _JITTER_SECONDS)
    return burst


def _parts(events: int, count: int) -> list[int]:
    return [max(_PART_MIN, events // max(1, count))] * max(1, count)
