"""running_worker: the worker in the process of a service, on real servers."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
import uvicorn
from fastapi import FastAPI, Request

from sea_mq_worker.admin import status as sampling
from sea_mq_worker.nats.connection import api
from sea_mq_worker.producer import enqueue
from sea_mq_worker.settings import Settings, SettingsError
from sea_mq_worker.worker import RunningWorker, WorkerEndedError, running_worker
from tests.support.builders import enqueueable
from tests.support.documents import blocks
from tests.support.jetstream import connected, consumer_info
from tests.support.servers import Database, PostgresAddress, scratch_database
from tests.support.waiting import eventually
from tests.support.worker import Deployment, apply_streams, deployment


@asynccontextmanager
async def served(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    """Serve an application with its lifespan, as uvicorn does, until the end of the block."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    serving = asyncio.create_task(server.serve([listener]))
    await eventually(lambda: server.started or serving.done(), what="the application has started")
    try:
        yield
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


@pytest.fixture
async def target(
    database: Database, nats_url: str, names: str, tmp_path: Path, listener: socket.socket
) -> Deployment:
    handler = f"http://127.0.0.1:{listener.getsockname()[1]}/handle"
    made = deployment(context=names, database_url=database.dsn, nats_url=nats_url, handler_url=handler)
    await apply_streams(made, tmp_path)
    return made


def settings_of(target: Deployment, **changes: Any) -> Settings:
    given = {name.removeprefix("SEA_MQ_").lower(): value for name, value in target.environment.items()}
    return Settings.model_validate({**given, **changes})


async def test_a_fastapi_application_publishes_and_handles_in_its_own_process(
    target: Deployment, database: Database, nats_url: str, listener: socket.socket, monkeypatch: Any
) -> None:
    """The application of the document, with a handler."""
    for name, value in target.environment.items():
        monkeypatch.setenv(name, value)
    [example] = [text for _, kind, text in blocks("docs/how-to/deploying.md") if kind == "python"]
    names: dict[str, Any] = {}
    exec(compile(example, "deploying.md", "exec", dont_inherit=True), names)
    app: FastAPI = names["app"]
    handled: list[Any] = []

    @app.post("/handle")
    async def handle(request: Request) -> None:
        handled.append(await request.json())

    async with served(app, listener), asyncpg.create_pool(database.dsn, min_size=1) as pool:
        async with pool.acquire() as connection, connection.transaction():
            [event] = await enqueue(connection, enqueueable())
        state = "SELECT state = 'PUBLISHED' FROM outbox_events WHERE id = $1"
        await eventually(lambda: pool.fetchval(state, event), what="the event is published")
        async with connected(nats_url) as broker:
            subject, headers = f"{target.upstream}.event.order.paid.v1", {"Nats-Msg-Id": str(event)}
            await broker.client.jetstream().publish(subject, b'{"order": 7}', headers=headers)
        await eventually(lambda: handled, what="the message is handled")
        async with httpx2.AsyncClient(trust_env=False) as http:
            await eventually(lambda: is_ready(http, listener), what="the application is ready")
        assert "sea_mq_outbox_published_total" in app.state.worker.metrics()

    assert [message["payload"] for message in handled] == [{"order": 7}]
    assert app.state.worker.problems() == {"worker": "it has ended; its log has the cause"}


async def is_ready(http: httpx2.AsyncClient, listener: socket.socket) -> bool:
    return (await http.get(f"http://127.0.0.1:{listener.getsockname()[1]}/readyz")).status_code == 200


async def test_an_unavailable_server_does_not_hold_the_service_up(target: Deployment) -> None:
    async with running_worker(settings_of(target, nats_url="nats://127.0.0.1:1")) as worker:
        assert worker.problems() == {"start": "the worker is starting"}


async def test_logging_and_signals_stay_as_the_service_has_them(
    target: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    def found() -> tuple[Any, ...]:
        root = logging.getLogger()
        return *root.handlers, root.level, *map(signal.getsignal, (signal.SIGTERM, signal.SIGINT))

    caplog.set_level(logging.INFO, "sea_mq_worker")
    before = found()
    async with running_worker(settings_of(target)) as worker:
        await worker.started()
        assert found() == before

    assert found() == before
    assert any(text.startswith("worker_stopped name=") for text in caplog.messages)


async def test_a_worker_that_ends_by_itself_is_a_problem_and_an_error(
    target: Deployment, postgres_server: PostgresAddress
) -> None:
    """The database has no schema."""

    async def service(settings: Settings) -> None:
        async with running_worker(settings) as worker:
            with pytest.raises(WorkerEndedError, match="before it had started"):
                await worker.started()
            assert worker.problems().keys() == {"worker"}

    async with scratch_database(postgres_server, prefix="empty_") as empty:
        with pytest.raises(WorkerEndedError, match="exit code 3"):
            await service(settings_of(target, database_url=empty.dsn))


async def test_an_error_of_the_service_stops_the_worker_and_passes_through(target: Deployment) -> None:
    workers: list[RunningWorker] = []

    async def service() -> None:
        async with running_worker(settings_of(target)) as worker:
            workers.append(worker)
            raise RuntimeError("of the service")

    with pytest.raises(RuntimeError, match="of the service"):
        await service()
    assert workers[0].problems().keys() == {"worker"}


async def test_a_service_that_is_cancelled_while_it_starts_leaves_no_worker(target: Deployment) -> None:
    async def serve() -> None:
        async with running_worker(settings_of(target)):
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert "sea_mq_worker" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_changed_filter_of_a_consumer_is_reported(
    target: Deployment, nats_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SAMPLE_SECONDS", 0.1)
    stream, durable = target.upstream_stream, target.durable
    async with connected(nats_url) as broker, running_worker(settings_of(target)) as worker:
        for number in ("pending", "oldest_seconds"):
            series = f'sea_mq_consumer_{number}{{consumer="{durable}"}}'
            await eventually(lambda series=series: series in worker.metrics())
        config = (await consumer_info(broker, stream, durable))["config"]
        update = {"stream_name": stream, "config": config | {"filter_subject": "nothing.of.it"}}
        await api(broker, f"CONSUMER.CREATE.{stream}.{durable}.nothing.of.it", update)
        changed = f"{durable} of stream {stream} takes nothing.of.it, before {config['filter_subject']}"
        await eventually(lambda: changed in caplog.text)


async def test_a_missing_or_contradictory_setting_is_reported_before_the_block(target: Deployment) -> None:
    with pytest.raises(SettingsError, match="SEA_MQ_DATABASE_URL: is required"):
        async with running_worker():
            pass
    for wrong, reported in (
        ({"handler_url": ""}, "SEA_MQ_HANDLER_URL: is required"),
        ({"nats_url": ""}, "SEA_MQ_NATS_URL: is required"),
        ({"outbox_lease_seconds": 1}, "SEA_MQ_OUTBOX_LEASE_SECONDS: must be at least"),
    ):
        with pytest.raises(SettingsError, match=reported):
            async with running_worker(settings_of(target, **wrong)):
                pass


async def test_an_error_of_the_worker_that_nobody_waits_for_leaves_nothing_on_stderr(
    target: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """The time limit contradicts the consumer, which the worker learns from the server."""

    async def service() -> None:
        contradicting = settings_of(target, handler_timeout_seconds=300, inbox_lease_seconds=400)
        async with running_worker(contradicting) as worker:
            await eventually(lambda: "worker" in worker.problems(), within=20, what="the worker has ended")
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await service()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
