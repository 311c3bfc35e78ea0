"""The commands and examples of documents, used as they are written."""

import asyncio
import json
import os
import re
import runpy
import signal
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData, create_engine, make_url
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.inbox.http import read_elements
from sea_mq_worker.producer import enqueue
from sea_mq_worker.runtime.supervisor import ExitCode
from sea_mq_worker.settings import load_settings
from tests.integration.test_migrations import PSQL
from tests.support import servers
from tests.support.builders import enqueueable
from tests.support.checkups import OF_TEST_SERVERS, Patient
from tests.support.documents import ROOT, blocks, commands, output, shell
from tests.support.jetstream import shipped_files
from tests.support.operators import Answer
from tests.support.programs import WORKER, own_programs
from tests.support.rows import add_event, add_message
from tests.support.servers import Database, PostgresAddress
from tests.support.waiting import eventually
from tests.support.worker import deployment, running

PRODUCING, HANDLING = "docs/how-to/producing.md", "docs/how-to/handling.md"
PUBLISHED = "SELECT bool_and(state = 'PUBLISHED') FROM outbox_events"
ROLES = "SELECT rolname::text FROM pg_roles WHERE rolname LIKE 'sea\\_mq\\_%' ORDER BY 1"


async def typed(line: str, environment: Mapping[str, str], **named: object) -> Answer:
    """Run a command of the worker, with ``named`` words in place of its own."""
    words = [str(named.get(word, word)) for word in words_of(line)]
    done = await asyncio.to_thread(CliRunner().invoke, app, words, env=dict(environment))
    return Answer(code=done.exit_code, out=done.stdout, err=done.stderr)


def words_of(line: str) -> list[str]:
    [(program, words)] = own_programs(line)
    assert program == WORKER
    return words


def of_psql(database: Database) -> dict[str, str]:
    """Find psql, and lead it to a database by its own variables."""
    url = urlsplit(database.dsn)
    return {
        "PATH": f"{PSQL.parent}{os.pathsep}{os.environ['PATH']}",
        "PGHOST": url.hostname or "", "PGPORT": str(url.port), "PGUSER": url.username or "",
        "PGPASSWORD": unquote(url.password or ""), "PGDATABASE": database.name,
    }  # fmt: skip


async def test_the_first_start_sets_a_worker_up(
    postgres_server: PostgresAddress, nats_url: str, names: str, tmp_path: Path
) -> None:
    *before, run = (command.text for command in commands("docs/how-to/deploying.md", "First start"))
    async with servers.scratch_database(postgres_server, prefix="test_") as empty:
        target = deployment(
            context=names, database_url=empty.dsn, nats_url=nats_url, handler_url="http://127.0.0.1:1/",
            streams_folder=shipped_files(tmp_path / "streams", upstream=f"{names}up"),
            stream_replicas=1, stream_max_bytes=2**26,
        )  # fmt: skip
        theirs = f"python -m sea_mq_worker streams apply --stream {target.upstream_stream}"
        answers = [await typed(line, target.environment) for line in (theirs, *before)]
        assert [answer.code for answer in answers] == [0, 0, 0], answers
        async with running(target, tmp_path / "worker.log", *words_of(run)) as worker:
            await worker.ready()
            service = await asyncpg.connect(empty.dsn)
            async with service.transaction():
                await enqueue(service, enqueueable())
            await eventually(lambda: service.fetchval(PUBLISHED), what="the event is PUBLISHED")
            await service.close()
            await worker.stopped()


async def test_what_to_ask_at_three_in_the_morning(system: Patient) -> None:
    *lines, by_psql = [command.text for command in commands("docs/reference/cli.md")]
    [id_] = [words[1] for words in map(words_of, lines) if words[0] == "where"]
    await add_event(system.pool, id=UUID(id_.ljust(32, "0")), error="no answer")
    await add_event(system.pool, "DEAD", error="too large")
    message = await add_message(system.pool)
    answers = {" ".join(words_of(line)): await typed(line, system.environment) for line in lines}
    outputs = {command: answer.out for command, answer in answers.items()}
    assert "outbox_dead" in outputs["doctor"]
    assert [answer for command, answer in answers.items() if answer.code and command != "doctor"] == []
    assert "no answer" in outputs[f"where {id_}"]
    assert "too large" in outputs["outbox summary"]
    assert str(message) in outputs["inbox list"]
    assert " 1 |" in shell(by_psql, **of_psql(system.database))


def test_every_exit_code_is_documented() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", (ROOT / "docs" / "reference" / "cli.md").read_text(), re.MULTILINE)
    reported = {int(code) for row in rows for code in row.split(", ")}
    assert reported == {*ExitCode, 128 + signal.SIGINT, 128 + signal.SIGTERM}


async def test_what_to_ask_before_an_upgrade(system: Patient) -> None:
    migrate, doctor = [
        await typed(command.text, system.environment) for command in commands("docs/how-to/upgrading.md")
    ]
    assert (migrate.code, "side by side" in migrate.out) == (0, True)
    assert {word for word in doctor.out.replace(":", "").split() if word in OF_TEST_SERVERS}


async def test_doctor_prints_what_its_document_shows(system: Patient) -> None:
    await system.sql("DROP INDEX idx_outbox_due")
    [shown] = commands("docs/reference/doctor.md")
    assert output("docs/reference/doctor.md") in (await typed(shown.text, system.environment)).out


async def test_psql_makes_the_roles(system: Patient, database: Database) -> None:
    make, login = (command.text for command in commands("docs/how-to/security.md", "Roles in PostgreSQL"))
    shell(make, **of_psql(database))
    made = [row[0] for row in await system.pool.fetch(ROLES)]
    try:
        shell(login, **of_psql(database))
        assert await system.pool.fetchval("SELECT pg_has_role('orders_worker', 'sea_mq_relay', 'member')")
    finally:
        for role in ("orders_worker", *made):
            await system.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_alembic_leaves_the_tables_of_the_worker_alone(system: Patient) -> None:
    [example] = [text for heading, _, text in blocks(PRODUCING) if heading == "Migrations by Alembic"]
    engine = create_engine(make_url(system.database.dsn).set(drivername="postgresql+psycopg"))
    options: dict[str, Any] = {}
    given = {"context": SimpleNamespace(configure=options.update), "metadata": MetaData()}
    with engine.connect() as connection:

        def dropped(**configured: Any) -> int:
            found = compare_metadata(MigrationContext.configure(connection, opts=configured), MetaData())
            return sum(difference[0] == "remove_table" for difference in found)

        exec(example, given | {"connection": connection})
        assert (dropped() > 5, dropped(include_object=options["include_object"])) == (True, 0)
    engine.dispose()


def test_the_examples_of_a_request_and_of_a_batchs_answer_fit_handler_and_worker() -> None:
    example, answer = [text for _, language, text in blocks(HANDLING) if language == "json"]
    request = runpy.run_path(str(ROOT / "examples" / "handler.py"))["Message"]
    given = json.loads(example)
    assert request.model_validate(given | {"of_a_later_worker": 1}).model_dump().keys() == given.keys()
    ids = [element["message_id"] for element in json.loads(answer)]
    elements = read_elements(answer.encode(), ids)
    assert not isinstance(elements, str)
    assert [element["status"] for element in elements.values()] == [200, 503]


def test_a_settings_file_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [example] = [
        text for _, language, text in blocks("docs/reference/configuration.md") if language == "toml"
    ]
    (tmp_path / "worker.toml").write_text(example)
    monkeypatch.setenv("SEA_MQ_CONFIG", str(tmp_path / "worker.toml"))
    found = load_settings().model_dump(mode="json", exclude_unset=True)
    assert found.keys() >= tomllib.loads(example).keys()


def test_the_trail_of_a_seed_is_printed() -> None:
    [line] = [command.text for command in commands("docs/proof/simulation.md") if "--trail" in command.text]
    assert "DONE" in shell(line)
