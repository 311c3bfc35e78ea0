"""Canaries wherever there is a secret or a payload: none of them is in anything that comes out."""

import asyncio
import base64
import gzip
import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncpg
import httpx2
import pytest
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.errors import WorkerError
from sea_mq_worker.postgres.pool import WORKER_HINTS, fetch
from tests.support.handlers import Behaviour, HandlerServer, answer, handler_server, in_turn, raw
from tests.support.jetstream import store, stored_messages
from tests.support.rows import opened
from tests.support.servers import Database
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually
from tests.support.worker import Deployment, WorkerProcess, running

ENDED = """
SELECT count(*) = $1 FROM inbox_messages WHERE processed_at IS NOT NULL OR dead_lettered_at IS NOT NULL
"""
SETTLED = "SELECT bool_and(state IN ('PUBLISHED', 'DEAD')) FROM outbox_events"
NOTED = "SELECT publish_error FROM outbox_events UNION ALL SELECT last_error FROM inbox_messages"
FORBID = "ALTER TABLE outbox_events ADD CONSTRAINT planted CHECK (state <> 'PUBLISHED') NOT VALID"


@dataclass
class Canaries:
    """Secrets that are known again wherever they turn up."""

    made: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str) -> str:
        """Make a secret, or return the one that was made for this name."""
        return self.made.setdefault(name, f"canary{name}{uuid.uuid4().hex}")

    def found_in(self, outputs: Mapping[str, str]) -> list[tuple[str, str]]:
        """Name each output and the canary of which it holds a part, plain or in base64."""
        found = []
        for name, secret in self.made.items():
            half = secret[len(secret) // 2 :]
            coded = [base64.b64encode(b" " * shift + half.encode()).decode()[4:-4] for shift in range(3)]
            found += [
                (output, name)
                for output, text in outputs.items()
                if any(part in text for part in (secret, half, *coded))
            ]
        return found


@dataclass(frozen=True, slots=True)
class Place:
    """A deployment in which all that can hold a secret holds a canary; ``direct`` bypasses the proxies."""

    site: Site
    target: Deployment
    direct: Deployment
    collector: HandlerServer
    folder: Path

    async def send(self, body: str, note: str = "", behaviour: Behaviour | None = None) -> None:
        """Store a message upstream with a note in a header; ``behaviour`` is the handler's for it."""
        message_id = str(uuid.uuid4())
        if behaviour:
            self.site.effects.script[message_id] = behaviour
        headers = {"Nats-Msg-Id": message_id, "x-note": note}
        await store(self.site.broker, self.site.subject, body.encode(), headers=headers)


@pytest.fixture
def canary() -> Canaries:
    return Canaries()


def secret_file(folder: Path, name: str, secret: str) -> Path:
    file = folder / name
    file.touch(mode=0o600)
    file.write_text(secret)
    return file


@pytest.fixture
async def place(
    canary: Canaries, database: Database, site_with: SiteWith, names: str, tmp_path: Path
) -> AsyncIterator[Place]:
    users = [{"user": "sea", "password": canary("nats")}, {"user": "test", "password": "t"}]
    config = {"authorization": {"users": users}, "no_auth_user": "test"}
    owner = await asyncpg.connect(database.dsn)
    await owner.execute(f"CREATE ROLE {names} SUPERUSER LOGIN PASSWORD '{canary('database')}'")
    dsn = re.sub(r"//[^@]*@", f"//{names}:{canary('database')}@", database.dsn)
    async with (
        EmbeddedNats(tmp_path / "nats", config=config) as nats,
        handler_server() as collector,
        site_with(dsn=dsn, nats_url=nats.url) as made,
    ):
        exporter = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
            "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={canary('collector')}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        secret = {
            "SEA_MQ_HANDLER_URL": f"{made.handler.url}?key={canary('query')}",
            "SEA_MQ_HANDLER_TOKEN_FILE": str(secret_file(tmp_path, "handler", canary("handlertoken"))),
            "SEA_MQ_ADMIN_TOKEN_FILE": str(secret_file(tmp_path, "admin", canary("admintoken"))),
            "SEA_MQ_LOG_LEVEL": "debug",
            "SEA_MQ_TRACING": "true",
        }

        def deployed(by: Deployment, **more: str) -> Deployment:
            database, nats_url = (by.environment[f"SEA_MQ_{server}_URL"] for server in ("DATABASE", "NATS"))
            login = nats_url.replace("//", f"//sea:{canary('nats')}@")
            own = secret | {"SEA_MQ_DATABASE_URL": database, "SEA_MQ_NATS_URL": login}
            return replace(by, environment={**made.target.environment, **own, **more})

        target, direct = deployed(made.target, **exporter), deployed(made.direct)
        yield Place(made, target, direct, collector, tmp_path)
    await owner.execute(f"DROP ROLE {names}")
    await owner.close()


async def live_through_trouble(place: Place, canary: Canaries, worker: WorkerProcess) -> None:
    """Send good and bad events and messages, through a handler that repeats what it got and two outages."""
    body = json.dumps({"card": canary("payload")})
    own = {"x-note": canary("header")}
    await place.site.commit(payload={"card": canary("payload")}, headers=own)
    await place.site.database.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)"
        " VALUES (gen_random_uuid(), 'a', 'b', 'c', $1, $2)",
        body,
        json.dumps({"x-note": f"{canary('header')}\r\nNats-Rollup: all"}),
    )
    words = f"cannot take {canary('answer')}".encode()
    unhttp = raw(words + b"\r\n\r\n", close=True)
    ill = in_turn(answer(500, words, x_why=canary("answer")), unhttp, answer(200))
    rejected = answer(422, words)
    await place.send(body, canary("header"))
    await place.send(body, canary("header"), ill)
    await place.send(body, canary("header"), rejected)
    await place.send(f"no json: {canary('payload')}", canary("header"))
    await eventually(lambda: place.site.database.fetchval(ENDED, 4), within=30, what=worker.written[-1000:])
    await eventually(lambda: place.site.database.fetchval(SETTLED), within=20, what="all events are settled")
    for proxy in (place.site.to_database, place.site.to_broker):
        proxy.refuse()
    await worker.answers(503)
    for proxy in (place.site.to_database, place.site.to_broker):
        proxy.heal()
    await worker.answers(200)


async def served(worker: WorkerProcess, token: str) -> dict[str, str]:
    """Read every page, without and with the token."""
    found = re.search(r"http://127\.0\.0\.1:\d+", worker.written)
    assert found
    pages: dict[str, str] = {}
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        for page in ("", "healthz", "readyz", "metrics", "status", "else"):
            for scheme in ("None", "Basic", "Bearer"):
                headers = {"authorization": f"{scheme} {token}"}
                reply = await client.get(f"{found[0]}/{page}", headers=headers)
                pages[f"/{page} {len(pages)}"] = f"{reply.headers} {reply.text}"
    return pages


async def noted(place: Place) -> dict[str, str]:
    """Read the error columns, and of dead letters what the worker adds."""
    stored = await stored_messages(place.site.broker, f"{place.target.context.upper()}_DLQ")
    added = [{k: v for k, v in headers.items() if k.startswith("Dlq-")} for *_, headers in stored]
    assert len(stored) == 2
    return {
        "error columns": str([row[0] for row in await place.site.database.fetch(NOTED)]),
        "dead letters": str(added),
    }


def exported(collector: HandlerServer) -> str:
    bodies = [
        gzip.decompress(call.body) if call.headers.get("content-encoding") == "gzip" else call.body
        for call in collector.calls
    ]
    assert bodies
    return b"".join(bodies).decode("latin-1")


@pytest.mark.fault("S01")
@pytest.mark.fault("S02")
@pytest.mark.fault("S09")
async def test_a_failing_worker_shows_no_secret_and_no_payload(place: Place, canary: Canaries) -> None:
    async with running(place.target, place.folder / "log") as worker:
        await worker.ready()
        await live_through_trouble(place, canary, worker)
        outputs = await served(worker, canary("admintoken"))
        process = Path(f"/proc/{worker.process.pid}")
        outputs["command line"] = (process / "cmdline").read_text()
        await place.site.database.execute(FORBID)
        await place.site.commit(payload={"card": canary("payload")})
        await eventually(lambda: "planted" in worker.written, what="a refusal that prints the row")
    outputs |= await noted(place) | {"log": worker.written, "spans": exported(place.collector)}
    calls = place.site.handler.calls
    assert canary.found_in(outputs) == []
    assert {call.headers["authorization"] for call in calls} == {f"Bearer {canary('handlertoken')}"}
    assert all(canary("payload") in call.body.decode() for call in calls)


COMMANDS = (
    ("doctor",),
    ("depth",),
    ("outbox", "list", "--state", "PENDING", "--state", "DEAD"),
    ("inbox", "list", "--json"),
    ("dlq", "list"),
    ("streams", "check"),
)


def settings_around_a_secret(place: Place, other: str) -> tuple[dict[str, dict[str, object]], ...]:
    """Return settings that are found wrong before anything is asked, and those that a server refuses."""
    database, nats = (place.direct.environment[f"SEA_MQ_{name}_URL"] for name in ("DATABASE", "NATS"))
    wrong: dict[str, dict[str, object]] = {
        "database URL": {"database_url": f"postgresql://sea:{other}/x@127.0.0.1/sea"},
        "database port": {"database_url": f"postgresql://sea@127.0.0.1:{other}/sea"},
        "broker URL": {"nats_url": f"nats://sea:{other}/x@127.0.0.1:4222"},
        "broker port": {"nats_url": f"nats://127.0.0.1:{other}"},
        "settings file": {"config": secret_file(place.folder, "a.toml", f'database_url = "{other}')},
        "settings file's key": {"config": secret_file(place.folder, "b.toml", f'"{other}" = 1')},
        "numbers": {"outbox_batch_max": other, "admin_port": other, "log_level": other},
    }
    refused: dict[str, dict[str, object]] = {
        "database password": {"database_url": re.sub(r"canarydatabase\w+", other, database)},
        "broker password": {"nats_url": re.sub(r"canarynats\w+", other, nats)},
        "handler URL": {"handler_url": f"http://sea:{other}@127.0.0.1:1/"},
        "token": {"handler_token_file": secret_file(place.folder, "bad", f"{other} {other}")},
    }
    return wrong, refused


async def here(target: Deployment, *command: str, **settings: object) -> tuple[int, str]:
    """Run a command in this process; return its exit code and all that it said."""
    given = {f"SEA_MQ_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**target.environment, **given}
    result = await asyncio.to_thread(CliRunner().invoke, app, command, env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


async def ended(place: Place, name: str, **settings: object) -> tuple[int, str]:
    """Run a worker to its end; return its exit code and its log."""
    async with running(place.direct, place.folder / f"log of {name}", **settings) as worker:
        return await worker.ended(within=60), worker.written


@pytest.mark.fault("S01")
async def test_commands_and_refused_settings_show_no_secret(place: Place, canary: Canaries) -> None:
    """A worker ends with 2 or 3 and a line, not with a traceback."""
    await place.site.commit(payload={"card": canary("payload")})
    looked = {" ".join(command): await here(place.direct, *command) for command in COMMANDS}
    wrong_settings, refused_settings = settings_around_a_secret(place, canary("wrong"))
    wrong = {name: await here(place.direct, "run", **given) for name, given in wrong_settings.items()}
    ends = await asyncio.gather(*(ended(place, name, **given) for name, given in refused_settings.items()))
    refused = dict(zip(refused_settings, ends, strict=True))
    assert canary.found_in({name: text for name, (_, text) in (looked | wrong | refused).items()}) == []
    assert {code for code, _ in wrong.values()} == {2}
    assert all("SEA_MQ_" in text for _, text in wrong.values())
    assert {code for code, _ in refused.values()} <= {2, 3}
    assert not [text for _, text in refused.values() if "Traceback" in text]


async def test_an_error_of_the_database_quotes_no_value(database: Database) -> None:
    """Its own text does where a value is not of its type."""
    async with opened(database, hints=WORKER_HINTS) as pool:
        with pytest.raises(WorkerError, match="SQLSTATE 22P02") as reported:
            await fetch(pool, "SELECT $1::text::int", "canary")
    assert "canary" not in str(reported.value)
