"""Causes of doctor's findings in NATS, on the session's server."""

import asyncio
import contextlib
import uuid
from datetime import UTC, datetime, timedelta

import nats.errors
import pytest

from sea_mq_worker.doctor.findings import Finding
from tests.integration.doctor_cases.registry import (
    CASES,
    UNUSED,
    by_definition,
    by_setting,
    mended_by,
    provokes,
)
from tests.support.checkups import Mend, Patient
from tests.support.jetstream import DAY, SECOND, create_stream, store

by_setting("broker_unreachable", nats_url=f"nats://{UNUSED}")
by_setting("topology_differs__lacks_a_stream", dlq_stream="NOWHERE")
by_definition("stream_discards_old", "SEA_EVENTS", discard="old")
by_definition("stream_discards_old__of_a_subject", "SEA_EVENTS", max_msgs_per_subject=5)
by_definition("subjects_uncovered", "SEA_EVENTS", subjects=["sea.event.order.>"])


@provokes
async def stream_volatile(p: Patient) -> Mend:
    return await made_anew(p, storage="memory")


@provokes
async def stream_discards_old__once_read(p: Patient) -> Mend:
    return await made_anew(p, retention="interest")


async def made_anew(p: Patient, **fields: object) -> Mend:
    """Define what cannot be changed of a stream that is there."""
    delete = f"STREAM.DELETE.{p.name.upper()}_EVENTS"
    await p.ask(delete)
    fix = await p.define("SEA_EVENTS", **fields)

    async def make_anew(finding: Finding) -> None:
        await p.ask(delete)
        await fix(finding)

    return make_anew


@provokes
async def topology_differs(p: Patient) -> Mend:
    own = p.name.upper() + "_EVENTS"
    config = (await p.ask(f"STREAM.INFO.{own}"))["config"]
    await p.ask(f"STREAM.UPDATE.{own}", config | {"max_age": 8 * DAY})
    return p.command


@provokes
async def topology_differs__by_a_broken_file(p: Patient) -> Mend:
    file = p.files / "SEA_DLQ.json"
    right = file.read_text()
    file.write_text(right[:-2])

    async def correct(finding: Finding) -> None:
        assert str(file) in finding.what
        file.write_text(right)

    return correct


@provokes
async def subjects_uncovered__taken_elsewhere(p: Patient) -> Mend:
    """The own stream takes every subject that it is asked about, and the other one some of them."""
    fix = await p.define("SEA_EVENTS", subjects=["sea.event.order.>"])
    other = f"{p.name.upper()}_OTHER"
    await create_stream(p.broker, other, f"{p.name}.event.user.>")

    async def remove(finding: Finding) -> None:
        await p.ask(f"STREAM.DELETE.{other}")
        await fix(finding)

    return remove


@provokes
async def stream_full__nearly(p: Patient) -> Mend:
    fix = await p.define("SEA_EVENTS", max_msgs=5)
    for _ in range(4):
        await store(p.broker, f"{p.name}.event.made.v1", headers={"Nats-Msg-Id": str(uuid.uuid4())})
    return fix


def by_filling(slug: str, **limit: int) -> None:
    """Publish to the own stream until it refuses."""

    async def provoke(p: Patient) -> Mend:
        fix = await p.define("SEA_EVENTS", **limit)
        with contextlib.suppress(nats.errors.Error):
            while True:
                await store(p.broker, f"{p.name}.event.made.v1", headers={"Nats-Msg-Id": str(uuid.uuid4())})
        return fix

    CASES[slug] = provoke


by_filling("stream_full", max_msgs=5)


@provokes
async def dead_letters(p: Patient) -> Mend:
    await store(p.broker, f"{p.name}.dlq.made.v1")
    return mended_by(lambda: p.ask(f"STREAM.PURGE.{p.name.upper()}_DLQ"))


@provokes
async def topology_differs__lacks_a_consumer(p: Patient) -> Mend:
    right = p.given["consumers"]
    p.given["consumers"] = f"{p.upstream_stream}/nobody"
    return p.changing(consumers=right)


@provokes
async def consumer_paused(p: Patient) -> Mend:
    pause = f"CONSUMER.PAUSE.{p.upstream_stream}.{p.durable}"
    if p.broker.server_version < (2, 11):
        pytest.skip("this nats-server knows no pause")
    await p.ask(pause, {"pause_until": (datetime.now(UTC) + timedelta(hours=1)).isoformat()})

    return p.command


def by_consumer(slug: str, **config: object) -> None:
    async def provoke(p: Patient) -> Mend:
        await p.consumer("another", **config)
        p.given["consumers"] = f"{p.given['consumers']},{p.upstream_stream}/another"

        async def make_anew(finding: Finding) -> None:
            await p.command(finding)
            await p.consumer("another")

        return make_anew

    CASES[slug] = provoke


by_consumer("consumer_unfit__pushes", deliver_subject="nobody")


async def short_of_patience(p: Patient, **config: object) -> None:
    """Make two ack_waits less than a second."""
    await p.define("consumer", ack_wait=SECOND * 3 // 10, **config)
    p.given["handler_timeout_seconds"] = 0.2


@provokes
async def messages_missed(p: Patient) -> Mend:
    """A full stream, which drops what nobody has fetched."""
    await p.define("upstream", max_msgs=2, discard="old")
    for _ in range(3):
        await p.send()

    async def send_again(_finding: Finding) -> None:
        await p.send()
        await p.take()

    return send_again


@provokes
async def consumer_stuck(p: Patient) -> Mend:
    await short_of_patience(p, max_ack_pending=1)
    p.given["handler_concurrency"] = 1
    await p.send()
    return mended_by(await p.take())


@provokes
async def consumer_behind(p: Patient) -> Mend:
    """A slow handler: messages are taken one by one, and many wait."""
    await short_of_patience(p)
    count = 300
    for _ in range(count):
        await p.send()

    async def take_slowly() -> None:
        while True:
            await (await p.take())()
            await asyncio.sleep(0.1)

    taking = asyncio.create_task(take_slowly())
    p.stack.callback(taking.cancel)

    async def catch_up(_finding: Finding) -> None:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        await p.ask(f"STREAM.PURGE.{p.upstream_stream}", {"keep": 0})

    return catch_up


@provokes
async def consumer_behind__unattended(p: Patient) -> Mend:
    await short_of_patience(p)
    await p.send()
    return mended_by(p.take)
