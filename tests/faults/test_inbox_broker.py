"""Received messages while the broker, its streams or the durable change."""

import json
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.nats.connection import api
from tests.support.handlers import hang
from tests.support.jetstream import SECOND, create_consumer, store
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

PULL_SECONDS = 5.0
UNSEEN = "messages_missed"
QUICK: Mapping[str, Any] = {"inbox_lease_seconds": 1, "handler_timeout_seconds": 0.9}
QUICK_CONSUMER: Mapping[str, Any] = {"ack_wait": SECOND}


@pytest.fixture
async def quick(site_with: SiteWith) -> AsyncIterator[Site]:
    """A site that finds after seconds what nothing delivers any more."""
    async with site_with(
        consumer={**QUICK_CONSUMER, "max_deliver": 2}, inbox_attempts_max=1, **QUICK
    ) as made:
        yield made


@pytest.mark.fault("N31")
async def test_a_restart_under_a_waiting_pull_costs_no_more_than_the_pull(
    own_nats: EmbeddedNats, site_with: SiteWith
) -> None:
    async with site_with(nats_url=own_nats.url) as made:
        async with made.worker() as worker:
            await worker.ready()
            await eventually(made.consumer, until=lambda now: now["num_waiting"], what="a pull waits")
            await own_nats.kill()
            await own_nats.start()
            await eventually(lambda: made.broker.is_connected, what="the broker is back")
            await made.send()
            before = time.monotonic()
            await made.handler.called(1, within=30)
            assert time.monotonic() - before < PULL_SECONDS + 5
            await made.quiet()
        await made.audit()


@pytest.mark.fault("N44")
async def test_missed_messages_are_reported_once_and_counted(shared: Site) -> None:
    async with shared.worker(name="first") as first:
        await shared.send(3)
        await shared.handler.called(3)
        await shared.quiet()
        await first.stopped()
    await shared.send(40)
    await api(shared.broker, f"STREAM.PURGE.{shared.target.upstream_stream}", {"keep": 10})
    async with shared.worker(name="second") as second:
        await second.ready()
        counted = await second.metrics()
        await shared.quiet()
        await second.stopped()
    [reported] = [line for line in map(json.loads, second.written.splitlines()) if line["event"] == UNSEEN]
    assert (reported["first_seq"], reported["last_seq"], reported["count"]) == (4, 33, 30)
    assert counted[f'sea_mq_inbox_missed_total{{consumer="{shared.target.durable}"}}'] == 30
    async with shared.worker("doctor", name="doctor") as doctor:
        assert await doctor.ended() == 1
        assert "30 in all; the latest are some of 4 to 33" in " ".join(doctor.written.split())
    async with shared.worker(name="third") as third:
        await third.ready()
    assert UNSEEN not in third.events()


@pytest.mark.fault("N48")
async def test_messages_are_reported_that_a_recreated_durable_begins_behind(shared: Site) -> None:
    stream, durable = shared.target.upstream_stream, shared.target.durable
    async with shared.worker(name="first") as first:
        await shared.send(3)
        await shared.handler.called(3)
        await shared.quiet()
        await first.stopped()
    await shared.send(2)
    await api(shared.broker, f"CONSUMER.DELETE.{stream}.{durable}")
    await create_consumer(shared.broker, stream, durable, deliver_policy="new", max_deliver=20)
    async with shared.worker(name="second") as second:
        [reported] = await reports(second)
    assert (reported["first_seq"], reported["last_seq"], reported["count"]) == (4, 5, 2)


@pytest.mark.fault("N48")
async def test_messages_are_reported_that_a_server_lost_before_their_delivery(
    own_nats: EmbeddedNats, site_with: SiteWith
) -> None:
    """Its disk is set back, and with it the end of the stream."""
    async with site_with(nats_url=own_nats.url) as made:
        stored = stream_folder(own_nats, made)
        await made.send(3)
        await own_nats.stop()
        shutil.copytree(stored, made.folder / "older")
        await own_nats.start()
        await eventually(lambda: made.broker.is_connected, what="the broker is back")
        await made.send(5)
        pause = {"pause_until": "2100-01-01T00:00:00Z"}
        await api(made.broker, f"CONSUMER.PAUSE.{made.target.upstream_stream}.{made.target.durable}", pause)
        async with made.worker(name="first") as first:
            await first.ready()
            await first.stopped()
        await own_nats.stop()
        shutil.rmtree(stored)
        shutil.copytree(made.folder / "older", stored)
        await own_nats.start()
        async with made.worker(name="second") as second:
            [reported] = await reports(second)
    assert (reported["first_seq"], reported["last_seq"], reported["count"]) == (4, 8, 5)


@pytest.mark.fault("N48")
@pytest.mark.long
async def test_messages_that_a_server_takes_for_acknowledged_after_its_restart_are_handled(
    own_nats: EmbeddedNats, site_with: SiteWith
) -> None:
    """It comes back with the state of a durable that got and acknowledged all messages."""
    async with site_with(nats_url=own_nats.url) as made, made.worker() as worker:
        stream, durable = made.target.upstream_stream, made.target.durable
        await made.send(3)
        await made.handler.called(3)
        await made.quiet()
        made.to_broker.cut()
        made.to_broker.refuse()
        await made.send(2)
        await create_consumer(made.broker, stream, "other")
        inbox = made.broker.client.new_inbox()
        coming = await made.broker.client.subscribe(inbox)
        await made.broker.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.other", b"5", inbox)
        for _ in range(5):
            await (await coming.next_msg(timeout=5)).ack_sync()
        await own_nats.stop()
        states = stream_folder(own_nats, made) / "obs"
        shutil.copy(states / "other" / "o.dat", states / durable / "o.dat")
        await own_nats.start()
        made.to_broker.heal()
        await made.handler.called(5, within=90)
        assert worker.events().count("message_undeliverable") == 2
        await made.quiet()
        await made.audit()


def stream_folder(server: EmbeddedNats, made: Site) -> Path:
    """Return where a server keeps the upstream."""
    [found] = server.folder.rglob(f"streams/{made.target.upstream_stream}")
    return found


async def reports(worker: WorkerProcess) -> list[dict[str, Any]]:
    """Return what a worker reported as missed until it was ready."""
    await worker.ready()
    return [line for line in map(json.loads, worker.written.splitlines()) if line["event"] == UNSEEN]


@pytest.mark.fault("N34")
async def test_a_deleted_consumer_pauses_alone_until_it_is_created_again(shared: Site) -> None:
    stream, durable, other = shared.target.upstream_stream, shared.target.durable, "other"
    subject = f"{shared.target.upstream}.event.other.v1"
    await create_consumer(shared.broker, stream, other, filter_subject=subject, ack_wait=3 * SECOND)
    await shared.send(3)
    async with shared.worker(consumers=f"{stream}/{durable},{stream}/{other}") as worker:
        await shared.quiet()
        await api(shared.broker, f"CONSUMER.DELETE.{stream}.{durable}")
        assert "streams apply" in await worker.answers(503, f"{durable} of stream {stream} does not exist")
        await shared.commit()
        await shared.published()
        await store(shared.broker, subject, b"{}", headers={"Nats-Msg-Id": str(uuid.uuid4())})
        await shared.handler.called(4, within=15)
        await shared.send(2)
        await shared.apply_streams()
        await worker.ready()
        await shared.quiet()
    await shared.audit()
    assert set(shared.handler.calls_of().values()) == {1}


@pytest.mark.fault("D17")
async def test_a_consumer_that_stays_deleted_ends_the_worker_if_a_limit_is_set(shared: Site) -> None:
    stream, durable = shared.target.upstream_stream, shared.target.durable
    async with shared.worker(broken_seconds_max=1) as worker:
        await worker.ready()
        await api(shared.broker, f"CONSUMER.DELETE.{stream}.{durable}")
        assert await worker.ended(within=15) == 3
    assert "streams apply" in worker.written
    assert "it was not fixed within 1 s" in worker.written


@pytest.mark.fault("N34")
async def test_a_recreated_stream_is_consumed_from_its_beginning(quick: Site) -> None:
    stream = quick.target.upstream_stream
    [lost] = await quick.send()
    quick.effects.script[lost] = hang
    async with quick.worker(name="killed") as killed:
        await quick.handler.called(1, within=15)
        await killed.killed()
    del quick.effects.script[lost]
    await api(quick.broker, f"STREAM.DELETE.{stream}")
    await quick.apply_streams(**QUICK_CONSUMER)
    sent = await quick.send(3)
    async with quick.worker() as worker:
        await quick.quiet()
        await worker.tells("message_lost")
    row = await quick.inbox_row(lost)
    assert (row["stream_seq"], row["processed_at"], row["dead_lettered_at"]) == (1, None, None)
    assert "no longer holds it" in row["last_error"]
    assert set(quick.effects.taken) == set(sent)
    for message_id in sent:
        assert (await quick.inbox_row(message_id))["processed_at"] is not None


@pytest.mark.fault("N61")
async def test_a_worker_starts_before_its_upstream_and_begins_when_that_is_there(quick: Site) -> None:
    """Whichever context is deployed first."""
    await api(quick.broker, f"STREAM.DELETE.{quick.target.upstream_stream}")
    async with quick.worker() as worker:
        assert "streams apply" in await worker.answers(503, f"{quick.target.durable} of stream")
        await quick.commit(3)
        await quick.published()
        await quick.apply_streams(**QUICK_CONSUMER)
        await quick.send(3)
        await worker.ready()
        await quick.quiet()
        assert "circuit_closed" in worker.events()
    await quick.audit()


@pytest.mark.fault("N62")
async def test_a_durable_that_is_made_anew_without_acknowledgement_is_paused(shared: Site) -> None:
    stream, durable = shared.target.upstream_stream, shared.target.durable
    async with shared.worker() as worker:
        await worker.ready()
        await eventually(shared.consumer, until=lambda now: now["num_waiting"], what="a pull waits")
        await api(shared.broker, f"CONSUMER.DELETE.{stream}.{durable}")
        await create_consumer(shared.broker, stream, durable, ack_policy="none")
        await worker.answers(503, "ack_policy is none")
        await shared.send()
        await shared.commit()
        await shared.published()
        assert (await shared.consumer())["delivered"]["consumer_seq"] == 0
        await api(shared.broker, f"CONSUMER.DELETE.{stream}.{durable}")
        await shared.apply_streams()
        await worker.ready()
        await shared.quiet()
    await shared.audit()


@pytest.mark.fault("N36")
async def test_a_consumer_with_other_values_is_named_field_by_field_and_changed_only_when_asked(
    shared: Site,
) -> None:
    stream, durable = shared.target.upstream_stream, shared.target.durable
    folder = str(shared.folder / "streams")
    known = {"streams_folder": folder, "stream_replicas": 1, "stream_max_bytes": 2**26}
    changed = {
        "ack_wait": 4 * SECOND,
        "max_deliver": 19,
        "filter_subject": f"{shared.target.upstream}.event.m.>",
    }
    config = (await shared.consumer())["config"] | changed
    update = {"stream_name": stream, "config": config, "action": "update"}
    await api(shared.broker, f"CONSUMER.CREATE.{stream}.{durable}.{changed['filter_subject']}", update)

    async def found() -> dict[str, Any]:
        config = (await shared.consumer())["config"]
        return {field: config[field] for field in changed}

    async with shared.worker(name="a", **known) as first, shared.worker(name="b", **known) as second:
        for worker in (first, second):
            await worker.ready()
            for reported in ("streams_differ", *(f"{field} should be" for field in changed)):
                await worker.tells(reported)
        assert await found() == changed
        async with shared.worker("streams", "check", name="check", **known) as check:
            assert await check.ended() == 1
        assert await found() == changed
        async with shared.worker("streams", "apply", name="apply", **known) as apply:
            assert await apply.ended() == 0
        assert (await found())["max_deliver"] == 20
        await shared.send()
        await shared.quiet()
    await shared.audit()
