"""One of two workers cannot work and its sibling can: the sibling gets the messages, each has one effect.

The sick worker has twenty messages in hand, five of them in calls, when it is cut off from one dependency.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.nats.connection import api
from tests.faults.test_outbox_broker import configured
from tests.faults.test_outbox_sick_worker import ROOM, account_without_jetstream, accounts, leading
from tests.support.handlers import Behaviour, Call, HandlerServer, answer, handler_server, hang, raw
from tests.support.nats_cluster import nats_cluster
from tests.support.sick_worker import KINDS, logging_in, own_role
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

_LOG = logging.getLogger(__name__)
CALLS = 5
IN_HAND = 4 * CALLS
"""As many as a worker takes for its calls."""
_OK = 200
WITHIN = 20.0
"""Lease, ack_wait, a waiting pull and the longest wait for a probe: 3, 3, 5 and 5 s."""
WITHIN_ELECTION = 40.0
"""The node that is cut off may lead the durable, and another one has to follow it."""
WITHIN_BY_CHANCE = 60.0
"""A worker whose calls fail one by one gives each message back, and may get it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A site, and the handler of the worker that falls sick; both handlers share their effects."""

    at: Site
    handler: HandlerServer
    released: asyncio.Event

    async def take(self, call: Call, writer: Any) -> None:
        """Behave as both handlers do: hold all calls until the sibling works."""
        await self.released.wait()
        await self.at.effects.take(call, writer)

    async def take_slowly(self, call: Call, writer: Any) -> None:
        """Take half of the call's time limit."""
        await asyncio.sleep(1)
        await self.at.effects.take(call, writer)

    def refuse_calls(self) -> Awaitable[None]:
        """End the calls, and take no further connection."""
        self.handler.stop_listening()
        return self.handler.stop()

    def behave(self, behaviour: Behaviour) -> Awaitable[None]:
        """End the calls, and behave so from now on."""
        self.handler.default = behaviour
        return self.handler.stop()


Befall: TypeAlias = Callable[[Stage], Awaitable[None] | None]

QUICK: Mapping[str, Befall] = {
    "handler refused": Stage.refuse_calls,
    "database silent": lambda stage: KINDS["silent"](stage.at.to_database),
}
OTHERS: Mapping[str, Befall] = {
    "handler silent": lambda stage: stage.behave(hang),
    "handler slow": lambda stage: stage.behave(stage.take_slowly),
    "handler answers 500": lambda stage: stage.behave(answer(500)),
    "handler answers 404": lambda stage: stage.behave(answer(404)),
    "handler answers no HTTP": lambda stage: stage.behave(raw(b"220 mail.example ESMTP\r\n", close=True)),
    "database refused": lambda stage: KINDS["refused"](stage.at.to_database),
    "database slow": lambda stage: KINDS["slow"](stage.at.to_database),
    "database answers wrongly": lambda stage: KINDS["answers wrongly"](stage.at.to_database),
    "broker refused": lambda stage: KINDS["refused"](stage.at.to_broker),
    "broker silent": lambda stage: KINDS["silent"](stage.at.to_broker),
    "broker slow": lambda stage: KINDS["slow"](stage.at.to_broker),
    "broker answers wrongly": lambda stage: KINDS["answers wrongly"](stage.at.to_broker),
}
RIGHTS = {
    "to pull": {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.>"]}},
    "to acknowledge": {"publish": {"deny": ["$JS.ACK.>"]}},
    "to receive replies": {"subscribe": {"deny": ["_INBOX.>"]}},
    "to use JetStream": {"publish": {"deny": ["$JS.>"]}},
}
CELLS = [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]


@pytest.mark.fault("N46")
@pytest.mark.parametrize("sickness", CELLS)
async def test_a_worker_that_cannot_work_leaves_its_messages_to_its_sibling(
    site_with: SiteWith, sickness: str
) -> None:
    within = WITHIN_BY_CHANCE if sickness.startswith("handler") else WITHIN
    async with stage_of(site_with) as stage:
        async with in_hand(stage):
            if (ended := (QUICK | OTHERS)[sickness](stage)) is not None:
                await ended
            await handled_by_sibling(stage, sickness, within=within)
        await stage.at.audit()


@pytest.mark.fault("N46")
async def test_a_worker_whose_siblings_have_its_messages_is_ready_again_once_its_handler_is_back(
    shared: Site,
) -> None:
    takes = shared.effects.take
    async with AsyncExitStack() as up:
        handler = await up.enter_async_context(handler_server(takes))
        async with shared.worker(name="sick", handler_url=handler.url) as sick:
            await sick.ready()
            await up.aclose()
            await shared.send(5)
            await sick.answers(503, "cannot be reached")
            async with shared.worker(name="well", **shared.own_links):
                await shared.answered()
                async with handler_server(takes, port=handler.port):
                    await sick.answers(200, within=15)
    await shared.audit()


@pytest.mark.long
@pytest.mark.fault("N46")
@pytest.mark.parametrize("right", RIGHTS)
async def test_a_worker_that_loses_a_right_leaves_its_messages_to_its_sibling(
    site_with: SiteWith, tmp_path: Path, right: str
) -> None:
    async with (
        EmbeddedNats(tmp_path / "nats", config=rights(publish={"allow": [">"]})) as server,
        stage_of(site_with, nats_url=server.url) as stage,
    ):
        async with in_hand(stage, **logging_in(stage.at, nats_url="sick")):
            with configured(server, **rights(**RIGHTS[right])):
                await handled_by_sibling(stage, f"right {right}", within=WITHIN)
            await stage.at.quiet()
        await stage.at.audit()


@pytest.mark.long
@pytest.mark.fault("N46")
@pytest.mark.parametrize("right", ["INSERT", "UPDATE"])
async def test_a_worker_that_may_not_write_the_inbox_leaves_its_messages_to_its_sibling(
    site_with: SiteWith, right: str
) -> None:
    async with stage_of(site_with) as stage, own_role(stage.at) as role:
        async with in_hand(stage, **logging_in(stage.at, database_url=role)) as sick:
            await stage.at.database.execute(f"REVOKE {right} ON inbox_messages FROM {role}")
            await handled_by_sibling(stage, f"right to {right}", within=WITHIN)
            await stage.at.database.execute(f"GRANT {right} ON inbox_messages TO {role}")
            await eventually(lambda: is_back(sick))
        await stage.at.audit()


@pytest.mark.long
@pytest.mark.fault("N46")
@pytest.mark.parametrize("kind", ["refused", "silent", "answers wrongly"])
async def test_a_worker_whose_account_has_no_jetstream_leaves_its_messages_to_its_sibling(
    site_with: SiteWith, tmp_path: Path, kind: str
) -> None:
    async with (
        EmbeddedNats(tmp_path / "nats", config=accounts()) as server,
        stage_of(site_with, nats_url=server.url) as stage,
    ):
        async with in_hand(stage, **logging_in(stage.at, nats_url="sick")) as sick:
            async with account_without_jetstream(server, kind):
                await handled_by_sibling(stage, f"JetStream of the account {kind}", within=WITHIN)
            await eventually(lambda: is_back(sick))
        await stage.at.audit()


@pytest.mark.long
@pytest.mark.fault("N46")
async def test_a_worker_that_reaches_no_leader_leaves_its_messages_to_its_sibling(
    site_with: SiteWith, tmp_path: Path
) -> None:
    """The sick worker's NATS server is cut off from the others."""
    async with (
        nats_cluster(tmp_path.joinpath, room_bytes=8 * ROOM, may_be_cut=True) as cluster,
        stage_of(site_with, nats_url=cluster.nodes[0].url) as stage,
    ):
        at, leaders = stage.at, {}
        for stream in (await api(at.broker, "STREAM.NAMES"))["streams"]:
            info = partial(api, at.broker, f"STREAM.INFO.{stream}")
            config = (await info())["config"]
            await api(at.broker, f"STREAM.UPDATE.{stream}", config | {"num_replicas": 3})
            leaders[stream] = await eventually(partial(leading, info), what=f"{stream} has a leader")
        await eventually(lambda: leading(at.consumer), what="the durable has a leader")
        leader = leaders[at.target.upstream_stream]
        lonely = next(number for number in range(3) if number not in {0, cluster.named(leader)})
        async with in_hand(stage, nats_url=cluster.nodes[lonely].url) as sick:
            cluster.cut_off(lonely)
            await handled_by_sibling(stage, "leader out of reach", within=WITHIN_ELECTION)
            cluster.join_again()
            await eventually(lambda: is_back(sick))
        await at.audit()


def rights(**permissions: Any) -> dict[str, Any]:
    """Return the part of a server's configuration that says what the sick worker may do."""
    sick = {"user": "sick", "password": "s", "permissions": permissions}
    return {"authorization": {"users": [sick, {"user": "admin", "password": "a"}]}, "no_auth_user": "admin"}


@asynccontextmanager
async def in_hand(stage: Stage, **settings: object) -> AsyncIterator[WorkerProcess]:
    """Run the worker that is going to be sick, until it has twenty messages in hand."""
    at = stage.at
    async with at.worker(name="sick", handler_url=stage.handler.url, **settings) as sick:
        await sick.ready()
        await at.send(IN_HAND)
        await eventually(at.deliveries, until=IN_HAND.__eq__, what="the worker has all in hand")
        await stage.handler.called(CALLS)
        yield sick


async def handled_by_sibling(stage: Stage, sickness: str, *, within: float) -> None:
    """Send as many messages again, and wait until all have their effect."""
    at = stage.at
    async with at.worker(name="well", **at.own_links) as well:
        await well.ready()
        stage.released.set()
        began = time.monotonic()
        await at.send(IN_HAND)
        await eventually(lambda: unprocessed(at), until=lambda left: not left, within=within)
        _LOG.info("%s: %.1f s, %s", sickness, time.monotonic() - began, await figures(at))
        at.heal()
        await at.quiet()


async def is_back(worker: WorkerProcess) -> bool:
    """Tell whether it is ready, but for a handler whose last calls, held by the test, had no answer."""
    status, body = await worker.get("readyz")
    return status == _OK or '"parts": ["handler"]' in body


@asynccontextmanager
async def stage_of(site_with: SiteWith, **given: Any) -> AsyncIterator[Stage]:
    async with (
        site_with(handler_concurrency=CALLS, **given) as at,
        handler_server() as handler,
    ):
        stage = Stage(at=at, handler=handler, released=asyncio.Event())
        at.handler.default = handler.default = stage.take
        yield stage


async def unprocessed(at: Site) -> list[str]:
    """Return what is said of the messages without a recorded effect."""
    rows = await at.database.fetch(
        "SELECT processed_at, concat_ws(' ', message_id, attempts, last_error, locked_until - now()) AS text"
        " FROM inbox_messages"
    )
    missing = ["not recorded"] * (2 * IN_HAND - len(rows))
    return missing + [row["text"] for row in rows if row["processed_at"] is None]


async def figures(at: Site) -> str:
    """Return what the sickness cost the messages."""
    attempts = await at.database.fetchval("SELECT max(attempts) FROM inbox_messages")
    again = sum(count - 1 for count in at.effects.calls.values())
    return f"{await at.deliveries()} deliveries, at most {attempts} attempts, {again} calls again"
