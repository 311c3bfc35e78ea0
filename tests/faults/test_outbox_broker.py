"""A broker that is away, refuses or is slow only delays events, and the worker reports the reason."""

import asyncio
import contextlib
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.nats.connection import api
from tests.support.jetstream import SECOND, create_stream
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess

CROWD = 1000
REPLAY_BY_HAND = (
    "UPDATE outbox_events SET state = 'PENDING', published_at = NULL, publish_attempts = 0, failures = 0,"
    " first_attempt_at = NULL, available_at = now() WHERE id = $1"
)
LARGE = {"payload": {"text": "x" * 2000}}


@pytest.fixture
async def own(own_nats: EmbeddedNats, site_with: SiteWith) -> AsyncIterator[Site]:
    """A site on a broker that may be hurt."""
    async with site_with(nats_url=own_nats.url) as made:
        yield made


async def quiet_again(site: Site) -> None:
    """Wait until all is done, and until the test itself has found the broker again."""
    await site.published()
    await eventually(lambda: site.broker.is_connected, what="the test is connected again")
    await site.quiet()


async def assert_it_waits_and_says(site: Site, worker: WorkerProcess, reason: str, backlog: int) -> None:
    """Commit a backlog into the trouble: the worker is not ready and says why."""
    await site.commit(backlog, **LARGE)
    await worker.answers(503, reason)


@pytest.mark.parametrize(("mode", "backlog"), [("auto", 500), ("atomic", 100)])
@pytest.mark.fault("P15")
@pytest.mark.fault("P16")
@pytest.mark.fault("P34")
async def test_a_stream_that_takes_nothing_costs_no_event_its_life(
    shared: Site, mode: str, backlog: int
) -> None:
    name, subjects = shared.target.stream, [f"{shared.target.context}.event.>"]
    wanted = (await shared.stream())["config"]
    async with shared.worker(outbox_publish_mode=mode) as worker:
        await worker.ready()

        await shared.change_stream(sealed=True)
        await assert_it_waits_and_says(shared, worker, "sealed", backlog)
        await api(shared.broker, f"STREAM.DELETE.{name}")
        await assert_it_waits_and_says(shared, worker, "no stream takes the subject", backlog)
        await api(shared.broker, f"STREAM.CREATE.{name}", wanted)
        await shared.published()
        await worker.tells(f"stream {name} was created anew")

        await shared.change_stream(max_bytes=(await shared.stream())["state"]["bytes"] + 100_000)
        await assert_it_waits_and_says(shared, worker, "maximum bytes exceeded", backlog)
        await shared.change_stream(max_bytes=2**26)
        await shared.published()

        await shared.change_stream(max_msgs=(await shared.stream())["state"]["messages"] + 10)
        await assert_it_waits_and_says(shared, worker, "maximum messages exceeded", backlog)
        await shared.change_stream(max_msgs=-1)
        await shared.published()

        await shared.change_stream(no_ack=True)
        await assert_it_waits_and_says(shared, worker, "acknowledges nothing", backlog)
        await shared.change_stream(no_ack=False)
        await shared.published()

        await shared.change_stream(subjects=[f"{shared.target.context}.elsewhere.>"])
        await create_stream(shared.broker, f"{name}_THIEF", *subjects)
        await assert_it_waits_and_says(shared, worker, f"{name}_THIEF", backlog)
        await api(shared.broker, f"STREAM.DELETE.{name}_THIEF")
        await shared.change_stream(subjects=subjects)
        await shared.published()
    failed = "SELECT count(*) FROM outbox_events WHERE failures > 0"
    assert await shared.database.fetchval(failed) == 0
    await shared.audit()


@pytest.mark.fault("P27")
async def test_events_of_a_full_subject_keep_no_others_waiting(shared: Site) -> None:
    limits = {"max_msgs_per_subject": 5, "discard_new_per_subject": True}
    await shared.change_stream(**limits)
    async with shared.worker() as worker:
        await worker.ready()
        await shared.commit(CROWD, event_type="crowd.made")
        others = [(await shared.commit(event_type=f"rare{number}.made"))[0] for number in range(5)]
        await eventually(shared.copies, until=set(others).issubset, what="events of other subjects go out")
        await shared.change_stream(max_msgs_per_subject=-1, discard_new_per_subject=False)
        await shared.published()
    await shared.audit()


@pytest.mark.fault("P35")
async def test_a_repeat_after_the_duplicate_window_is_found_instead_of_stored_again(
    site_with: SiteWith,
) -> None:
    short = {"duplicate_window": 2 * SECOND}
    long = {"outbox_publish_timeout_seconds": 2, "outbox_lease_seconds": 4}
    async with site_with(stream=short) as forgetful:
        async with forgetful.worker(name="refused", **long) as no:
            assert await no.ended() == 2
        assert "SEA_MQ_OUTBOX_PUBLISH_TIMEOUT_SECONDS" in no.written
        async with forgetful.worker() as worker:
            await worker.ready()
            await worker.tells("duplicate_window_short")
            forgetful.to_broker.drop_to_client()
            ids = await forgetful.commit(3)
            await eventually(forgetful.copies, what="the stream has the events")
            await asyncio.sleep(2.5)  # the window passes
            forgetful.to_broker.heal()
            await forgetful.published()
        assert set(await forgetful.copies()) == set(ids)
        await forgetful.audit()


@pytest.mark.fault("P36")
async def test_a_replay_is_delivered_and_not_called_published_while_the_window_swallows_it(
    site_with: SiteWith,
) -> None:
    """It is tried at once, and again when the stream has forgotten the earlier copy."""
    short = {"duplicate_window": 4 * SECOND}
    async with site_with(stream=short) as forgetful:
        async with forgetful.worker() as worker:
            await worker.ready()
            [event_id] = await forgetful.commit()
            await forgetful.published()
            await forgetful.database.execute(REPLAY_BY_HAND, event_id)
            await eventually(
                lambda: forgetful.row(event_id),
                until=lambda row: "forgotten the earlier copy" in (row["publish_error"] or ""),
            )
            assert (await forgetful.copies())[event_id] == 1
            await forgetful.published()
        assert (await forgetful.copies())[event_id] == 2
        row = await forgetful.row(event_id)
        assert (row["stream_seq"], row["failures"]) == (2, 0)


@pytest.mark.fault("P36")
async def test_events_that_a_recreated_stream_lost_are_reported_and_replayed_at_once(
    site_with: SiteWith,
) -> None:
    """Whatever its duplicate window: what has lost the events has lost the memory of them, too."""
    async with site_with(stream={"duplicate_window": 3600 * SECOND}) as site:
        async with site.worker() as worker:
            await worker.ready()
            ids = await site.commit(20)
            await site.published()
            info = await site.stream()
            await api(site.broker, f"STREAM.DELETE.{site.target.stream}")
            await api(site.broker, f"STREAM.CREATE.{site.target.stream}", info["config"])
        async with site.worker(name="after") as worker:
            await worker.ready()
            await worker.tells("events_lost")
            assert (await worker.metrics())["sea_mq_outbox_events_lost"] == 1
            for event_id in ids:
                await site.database.execute(REPLAY_BY_HAND, event_id)
            await site.published()
        assert await site.copies() == dict.fromkeys(ids, 1)


@pytest.mark.fault("P36")
async def test_events_that_somebody_purged_from_the_own_stream_are_reported(shared: Site) -> None:
    async with shared.worker() as worker:
        await worker.ready()
        await shared.commit(20)
        await shared.published()
    await api(shared.broker, f"STREAM.PURGE.{shared.target.stream}")
    async with shared.worker(name="after") as worker:
        await worker.ready()
        await worker.tells("somebody removed message")
        assert "events_lost" in worker.events()
        assert (await worker.metrics())["sea_mq_outbox_events_lost"] == 1


@pytest.mark.fault("P09")
async def test_on_a_link_slower_than_the_lease_no_event_has_two_owners(shared: Site) -> None:
    async with shared.worker(name="one") as one, shared.worker(name="two") as two:
        await one.ready()
        await two.ready()
        shared.to_broker.delay(4)
        await shared.commit(50)
        await asyncio.sleep(4.5)  # an acknowledgement comes later than lease and deadline
        shared.to_broker.heal()
        await shared.quiet()
        for worker in (one, two):
            counted = await worker.metrics()
            assert not counted.get('sea_mq_leases_lost_total{side="outbox"}')
            assert counted["sea_mq_outbox_leases_reaped_total"] == 0
    await shared.audit()


@pytest.mark.fault("P10")
async def test_the_tail_of_a_slow_batch_is_given_back_before_its_lease_ends(shared: Site) -> None:
    async with shared.worker(outbox_publish_mode="pipeline") as worker:
        await worker.ready()
        shared.to_broker.delay(0.1)
        await shared.commit(100, ordering_key="k")
        await eventually(worker.metrics, until=lambda now: now["sea_mq_outbox_released_total"] > 0)
        shared.to_broker.heal()
        await shared.published()
        counted = await worker.metrics()
        assert not counted.get('sea_mq_leases_lost_total{side="outbox"}')
        assert counted["sea_mq_outbox_leases_reaped_total"] == 0
    await shared.audit()


@pytest.mark.clause("lifecycle-23")
@pytest.mark.fault("P11")
@pytest.mark.crash
async def test_a_broker_that_comes_late_and_dies_twenty_times_costs_no_more_than_a_moment(
    own: Site, own_nats: EmbeddedNats
) -> None:
    await own_nats.kill()
    async with own.worker() as worker:
        await worker.tells("nats_error")
        await worker.answers(503, "the worker is starting")
        await own_nats.start()
        await worker.ready()
        for _ in range(20):
            await own.commit(20)
            await own_nats.kill()
            await own_nats.start()
        await own.published(within=15)
        await quiet_again(own)
    await own.audit()


@pytest.mark.fault("P12")
@pytest.mark.crash
async def test_a_broker_that_does_not_know_the_worker_for_a_while_is_asked_until_it_does(
    own: Site, own_nats: EmbeddedNats
) -> None:
    async with own.worker() as worker:
        await worker.ready()
        with configured(own_nats, authorization={"user": "somebody", "password": "else"}):
            await worker.answers(503, "the server refuses the worker")
        await worker.ready()


@contextlib.contextmanager
def configured(server: EmbeddedNats, **change: Any) -> Any:
    """Have a running server take another configuration for the length of a block."""
    file = server.folder / "nats-server.conf"
    before = file.read_text()
    for text in (json.dumps(json.loads(before) | change), before):
        file.write_text(text)
        os.kill(server.pid, signal.SIGHUP)
        if text != before:
            yield


@pytest.mark.slow
@pytest.mark.fault("P13")
async def test_a_broker_that_froze_without_a_word_is_noticed_and_found_again(
    own: Site, own_nats: EmbeddedNats
) -> None:
    async with own.worker() as worker:
        await worker.ready()
        os.kill(own_nats.pid, signal.SIGSTOP)
        await worker.answers(503, "connection is down", within=15)
        await own.commit(10)
        os.kill(own_nats.pid, signal.SIGCONT)
        await quiet_again(own)
        await worker.ready()
    await own.audit()


@pytest.mark.fault("P20")
async def test_an_event_over_a_limit_that_was_lowered_costs_one_reconnect_and_dies_alone(
    own: Site, own_nats: EmbeddedNats
) -> None:
    async with own.worker() as worker:
        await worker.ready()
        with configured(own_nats, max_payload=50_000):
            [large] = await own.commit(payload={"text": "x" * 100_000})
            await own.commit(10)
            await quiet_again(own)
        await worker.tells("nats_disconnected")
        assert worker.events().count("nats_disconnected") == 1
    assert "max_payload of 50000" in (await own.row(large))["publish_error"]
    await own.audit(dead=frozenset({large}))


@pytest.mark.fault("P18")
async def test_a_forbidden_subject_is_named_and_keeps_no_other_waiting(
    names: str, tmp_path: Path, site_with: SiteWith
) -> None:
    def users(**permissions: Any) -> dict[str, Any]:
        return {
            "users": [
                {"user": "worker", "password": "w", "permissions": {"publish": permissions}},
                {"user": "admin", "password": "a"},
            ]
        }

    all_of_it, secret = f"{names}.event.>", f"{names}.event.secret.>"
    some = {"authorization": users(deny=[secret]), "no_auth_user": "admin"}
    async with (
        EmbeddedNats(tmp_path / "nats", config=some) as server,
        site_with(nats_url=server.url) as guarded,
    ):
        inside = guarded.target.environment["SEA_MQ_NATS_URL"].replace("nats://", "nats://worker:w@")
        async with guarded.worker(nats_url=inside) as worker:
            await worker.ready()
            await guarded.commit(CROWD, event_type="secret.made")
            await worker.answers(503, "permission")
            open_ones = await guarded.commit(3)
            await eventually(
                guarded.copies,
                until=lambda found: found == Counter(open_ones),
                what="what is permitted goes out",
            )
            with configured(server, authorization=users(deny=[all_of_it])):
                await guarded.commit(3)
                await worker.answers(503, "permission")
            with configured(server, authorization=users(allow=[">"])):
                await quiet_again(guarded)
        await guarded.audit()


@pytest.mark.fault("P42")
async def test_answers_that_are_denied_for_a_while_are_named_and_stop_nothing_for_good(
    tmp_path: Path, site_with: SiteWith
) -> None:
    """The right is taken and given back while the worker is connected."""

    def users(**permissions: Any) -> dict[str, Any]:
        worker = {"user": "worker", "password": "w", "permissions": permissions}
        return {"users": [worker, {"user": "admin", "password": "a"}]}

    config = {"authorization": users(subscribe={"allow": [">"]}), "no_auth_user": "admin"}
    async with (
        EmbeddedNats(tmp_path / "nats", config=config) as server,
        site_with(nats_url=server.url) as guarded,
    ):
        inside = guarded.target.environment["SEA_MQ_NATS_URL"].replace("nats://", "nats://worker:w@")
        async with guarded.worker(nats_url=inside) as worker:
            await worker.ready()
            with configured(server, authorization=users(subscribe={"deny": ["_INBOX.>"]})):
                await worker.answers(503, "_INBOX.>")
                await guarded.both_ways()
                await worker.tells("nats_reconnected")
            await guarded.quiet(within=20)
            await worker.ready()
        await guarded.audit()


@pytest.mark.fault("P19")
async def test_credentials_that_the_broker_does_not_take_end_the_start_at_once(
    tmp_path: Path, site_with: SiteWith
) -> None:
    known = {"users": [{"user": "admin", "password": "a"}]}
    config = {"authorization": known, "no_auth_user": "admin"}
    async with (
        EmbeddedNats(tmp_path / "nats", config=config) as server,
        site_with(nats_url=server.url) as guarded,
    ):
        wrong = server.url.replace("nats://", "nats://worker:c4n4ry@")
        async with guarded.worker(nats_url=wrong) as worker:
            assert await worker.ended() == 3
    assert "credentials" in worker.written
    assert "c4n4ry" not in worker.written


@pytest.mark.crash
async def test_events_wait_while_the_brokers_disk_is_full(own: Site, own_nats: EmbeddedNats) -> None:
    async with own.worker() as worker:
        await worker.ready()
        unlimited = resource.prlimit(own_nats.pid, resource.RLIMIT_FSIZE, (16_384, resource.RLIM_INFINITY))
        await own.commit(50, **LARGE)
        await worker.answers(503, f"stream {own.target.stream}")
        resource.prlimit(own_nats.pid, resource.RLIMIT_FSIZE, unlimited)
        await own_nats.kill()
        await own_nats.start()
        await quiet_again(own)
    await own.audit()
