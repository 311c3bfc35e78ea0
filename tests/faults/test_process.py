"""A process in trouble works, or says that it is not ready and why, or ends with a documented code."""

import asyncio
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import cpu_seconds
from tests.support.site import Site
from tests.support.waiting import eventually
from tests.support.worker import running

OUTAGE_SECONDS = 10.0
LINES_PER_MINUTE = 60
CPU_SHARE = 0.1
SCRAPE_SECONDS = 5.0
METADATA = "https://169.254.169.254/latest/meta-data/"


@pytest.mark.fault("L06")
async def test_an_unexpected_error_ends_the_whole_process(shared: Site) -> None:
    """A version that cannot be missing, because somebody has taken the constraint away."""
    await shared.database.execute("ALTER TABLE outbox_events ALTER COLUMN event_version DROP NOT NULL")
    async with shared.worker() as worker:
        await worker.ready()
        await shared.database.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, event_version)"
            " VALUES (gen_random_uuid(), 'a', '1', 'made', '{}', NULL)"
        )
        assert await worker.ended() == 4
    assert "outbox unordered died: TypeError" in worker.written


@pytest.mark.fault("L07")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        pytest.param({"database_url": ""}, "SEA_MQ_DATABASE_URL", id="in itself"),
        pytest.param({"handler_timeout_seconds": 3}, "SEA_MQ_HANDLER_TIMEOUT_SECONDS", id="by the consumer"),
        pytest.param({"tracing": True}, "OTEL_*", id="of OpenTelemetry"),
    ],
)
async def test_a_wrong_setting_is_named_on_one_line(
    shared: Site, settings: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    async with shared.worker(**settings) as worker:
        assert await worker.ended() == 2
    [line] = [line for line in worker.written.splitlines() if not line.startswith("{")]
    assert line.startswith(f"{named}:")
    assert "Traceback" not in worker.written


@pytest.mark.fault("S08")
async def test_a_metadata_service_is_no_handler_unless_a_setting_says_so(shared: Site) -> None:
    async with shared.worker(handler_url=METADATA) as refused:
        assert await refused.ended() == 2
    assert "handler_allow_link_local" in refused.written
    async with shared.worker(handler_url=METADATA, handler_allow_link_local=True) as worker:
        await worker.ready()


@pytest.mark.fault("L07")
async def test_an_admin_port_that_is_taken_is_a_wrong_setting(shared: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with shared.worker(admin_port=taken.getsockname()[1]) as worker:
            assert await worker.ended() == 2
    [line] = worker.written.splitlines()
    assert line.startswith("SEA_MQ_ADMIN_HOST, SEA_MQ_ADMIN_PORT:")


@pytest.mark.fault("L09")
@pytest.mark.slow
async def test_an_outage_of_everything_is_logged_in_few_lines_and_costs_little(shared: Site) -> None:
    async with shared.worker() as worker:
        await worker.ready()
        await shared.both_ways()
        await shared.quiet()
        lines, used = len(worker.written.splitlines()), cpu_seconds(worker.process.pid)
        shared.to_database.refuse()
        shared.to_broker.refuse()
        await shared.both_ways()
        await worker.answers(503)
        await asyncio.sleep(OUTAGE_SECONDS)
        assert (await worker.get("healthz"))[0] == 200
        assert len(worker.written.splitlines()) - lines <= LINES_PER_MINUTE * OUTAGE_SECONDS / 60 + 10
        assert cpu_seconds(worker.process.pid) - used < CPU_SHARE * OUTAGE_SECONDS
        shared.to_database.heal()
        shared.to_broker.heal()
        await worker.ready()
        await shared.quiet()
    await shared.audit()


@pytest.mark.fault("L13")
async def test_it_answers_at_once_while_its_servers_hang(shared: Site) -> None:
    async with shared.worker() as worker:
        await worker.ready()
        shared.to_database.stall()
        shared.to_broker.stall()
        await worker.answers(503)
        for page in ("healthz", "readyz", "metrics", "status", ""):
            began = time.monotonic()
            assert (await worker.get(page))[0] == (503 if page == "readyz" else 200)
            assert time.monotonic() - began < SCRAPE_SECONDS
        shared.to_database.heal()
        shared.to_broker.heal()
        await shared.both_ways()
        await shared.quiet()
    await shared.audit()


@pytest.mark.parametrize("redirection", ["> /dev/full 2>&1", "<&- >&- 2>&-"])
async def test_a_log_that_takes_nothing_stops_nothing(shared: Site, redirection: str) -> None:
    """A full disk, and descriptors that whoever started it has closed."""
    program = ("sh", "-c", f"exec {sys.executable} -m sea_mq_worker {redirection}")
    async with running(shared.target, Path(os.devnull), program=program) as worker:
        await shared.both_ways()
        await shared.quiet()
        await worker.stopped()
    await shared.audit()


async def test_a_log_whose_reader_is_stuck_stops_nothing(shared: Site) -> None:
    reader, writer = os.pipe()
    async with running(shared.target, Path(f"/dev/fd/{writer}"), log_level="debug") as worker:
        os.close(writer)
        for _ in range(20):
            await shared.both_ways()
        await shared.quiet()
        await eventually(lambda: b"worker_started" in os.read(reader, 2**20))
        await shared.commit()
        await eventually(lambda: b"log_lines_lost" in os.read(reader, 2**20))
        await shared.quiet()
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
    os.close(reader)
    await shared.audit()


@pytest.mark.fault("L16")
async def test_a_process_without_descriptors_to_spare_waits_for_them(shared: Site) -> None:
    async with shared.worker() as worker:
        await worker.ready()
        pid = worker.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, hard))
        shared.to_database.cut()
        shared.to_broker.cut()
        shared.to_handler.cut()
        await shared.both_ways()
        await eventually(lambda: "Too many open files" in worker.written)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        await worker.ready()
        await shared.quiet()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, hard))
        await worker.stopped()
    await shared.audit()
