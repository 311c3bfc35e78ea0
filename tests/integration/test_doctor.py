"""Doctor finds nothing where all is well, and whatever is wrong; each finding is provoked for real."""

import contextlib
import re
import socket
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from sea_mq_worker.admin.server import AdminServer
from sea_mq_worker.dev.servers import EmbeddedPostgres, free_port
from sea_mq_worker.doctor import examine
from sea_mq_worker.doctor.findings import Severity
from sea_mq_worker.doctor.services import read_readiness
from sea_mq_worker.outbox.maintenance import RECONCILE
from sea_mq_worker.postgres.migrations import expected_objects, migrate
from sea_mq_worker.postgres.pool import WORKER_HINTS
from sea_mq_worker.settings import Settings
from tests.integration.doctor_cases import CASES, CASES_OF_TABLES, VARIANT, Provoke
from tests.security.test_sql import STATEMENTS
from tests.support.checkups import OF_TEST_SERVERS, Patient, patient
from tests.support.nats_cluster import nats_cluster
from tests.support.pooler import transaction_pooler
from tests.support.rows import opened
from tests.support.servers import Database, PostgresAddress, scratch_database
from tests.support.waiting import eventually
from tools.docs.tables import findings

BELOW = {*OF_TEST_SERVERS, "standby_missing", "stream_replicas"}
ELSEWHERE = {
    "rights_missing": "security/test_doctor_rights.py",
    "row_security": "security/test_doctor_rights.py",
    "broker_refuses": "security/test_doctor_rights.py",
    "notifications_full": "faults/test_other_tools.py",
}
SHOWS = re.compile(r"python -m sea_mq_worker (\w+ list|where)\b")
RUN_ELSEWHERE = {"events_lost": {RECONCILE}}
"""Printed commands that tests/pipeline/test_reconcile_lost.py runs."""


@pytest.fixture
async def well(database: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Patient]:
    """A system that is healthy yet."""
    async with patient(database, nats_url, names, tmp_path) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def untouched(postgres_server: PostgresAddress, template_database: Database) -> AsyncIterator[Database]:
    """Tables that nobody writes to."""
    server, template = postgres_server, template_database.name
    async with scratch_database(server, prefix="untouched_", template=template) as shared:
        yield shared


@pytest.fixture
async def beside(untouched: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Patient]:
    """A healthy system, too, whose tables are to stay as they are."""
    async with patient(untouched, nats_url, names, tmp_path) as made:
        yield made


@pytest.mark.clause("store-20")
@pytest.mark.parametrize("case", CASES_OF_TABLES)
async def test_a_problem_with_tables_is_found_and_ends_by_its_fix(case: str, well: Patient) -> None:
    await provoked(case, CASES_OF_TABLES[case], well)


@pytest.mark.parametrize("case", CASES)
async def test_a_problem_beside_the_tables_is_found_and_ends_by_its_fix(case: str, beside: Patient) -> None:
    await provoked(case, CASES[case], beside)


async def provoked(case: str, provoke: Provoke, p: Patient) -> None:
    """Make one thing wrong, see that doctor finds it alone, mend it, and see that nothing is left.

    What the finding prints is run. A command that only shows more is run before the mend.
    """
    slug = case.partition(VARIANT)[0]
    fix = await provoke(p)
    found = await p.finds(slug)
    finding = found[slug]
    if SHOWS.match(finding.command):
        assert not (await p.follow(finding.command)).startswith("no ")
    await (fix or p.paste)(finding)
    await p.finds()
    assert {finding.command, finding.sql} - {""} <= p.done | RUN_ELSEWHERE.get(slug, set())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def durable() -> AsyncIterator[EmbeddedPostgres]:
    """A server with its own settings, not the quick ones of tests."""
    with tempfile.TemporaryDirectory(prefix="sea-mq-test-") as folder:
        async with EmbeddedPostgres(Path(folder), settings={"max_prepared_transactions": "2"}) as server:
            await migrate(server.dsn)
            yield server


@pytest.fixture
async def sound(
    durable: EmbeddedPostgres, nats_url: str, names: str, tmp_path: Path
) -> AsyncIterator[Patient]:
    """A system on a server whose commits are durable."""
    async with patient(Database(durable.dsn, "postgres"), nats_url, names, tmp_path) as made:
        made.known = frozenset({"sync_unknown"})
        yield made


async def test_a_healthy_system_in_any_schema_has_no_finding_but_what_cannot_be_known(
    sound: Patient,
) -> None:
    await migrate(sound.database.dsn, schema="Sales")
    sound.given["database_schema"] = "Sales"
    found = (await examine(sound.settings())).findings
    assert {(finding.slug, finding.severity) for finding in found} == {
        ("sync_unknown", Severity.INFO),
    }


async def test_how_a_database_quotes_names_and_reads_literals_makes_no_finding(well: Patient) -> None:
    for default in ("quote_all_identifiers = on", "standard_conforming_strings = off"):
        await well.sql(f"ALTER DATABASE {well.database.name} SET {default}")
    await well.finds()


@pytest.mark.parametrize(
    ("statement", "slug"),
    [
        ("ALTER SYSTEM SET autovacuum = off", "autovacuum_off"),
        ("ALTER SYSTEM SET track_counts = off", "autovacuum_off"),
        ("ALTER SYSTEM SET fsync = off", "commits_not_durable"),
        ("ALTER TABLE inbox_messages SET UNLOGGED", "commits_not_durable"),
        ("ALTER SYSTEM SET synchronous_commit = off", "synchronous_commit_off"),
        ("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "standby_missing"),
        ("BEGIN; CREATE TABLE x (); PREPARE TRANSACTION 'half of it'", "transaction_open_long"),
    ],
)
async def test_a_server_that_may_lose_or_delay_commits_is_found_and_its_printed_fix_works(
    statement: str, slug: str, sound: Patient
) -> None:
    sound.expect_soon()
    await sound.sql(statement)
    await sound.sql("SELECT pg_reload_conf()")
    found = await sound.finds(slug)
    await sound.paste(found[slug])
    await sound.finds()


async def test_a_pooler_that_is_not_declared_is_found(sound: Patient, durable: EmbeddedPostgres) -> None:
    async with transaction_pooler(durable) as url:
        sound.given["database_url"] = url
        found = await sound.finds("database_refuses")
        assert "SEA_MQ_DATABASE_POOLER=true" in found["database_refuses"].what
        sound.given["database_pooler"] = True
        await sound.finds()


async def test_a_missing_schema_is_found_and_made_and_a_newer_one_found(
    well: Patient, postgres_server: PostgresAddress
) -> None:
    async with scratch_database(postgres_server, prefix="empty_") as empty:
        well.given["database_url"] = empty.dsn
        found = await well.finds("schema_version")
        assert "pg_temp" not in found["schema_version"].what
        await well.command(found["schema_version"])
        await well.finds()
        async with opened(empty) as pool:
            await pool.execute(
                "INSERT INTO sea_mq_migrations (version, name, sha256) VALUES (99, '0099_newer', '')"
            )
        found = await well.finds("schema_version")
        assert (found["schema_version"].command, "newer worker" in found["schema_version"].what) == ("", True)


async def test_doctor_reports_the_missing_parts_of_a_cluster(
    database: Database, names: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp
    async with (
        nats_cluster(folder, room_bytes=2**30) as cluster,
        patient(database, cluster.nodes[0].url, names, folder("files"), stream_replicas=3) as made,
    ):
        made.given["nats_url"] = cluster.urls
        await made.finds()
        assert "sync_unknown" not in {finding.slug for finding in (await examine(made.settings())).findings}
        holder = cluster.nodes[await single_copy(made)]
        await made.finds("stream_replicas", "topology_differs")
        await holder.stop()
        await made.finds("broker_unreachable", "stream_replicas")
        await holder.start()
        await made.finds("stream_replicas", "topology_differs")
        await made.command((await made.examined())["topology_differs"])
        await made.finds()


async def single_copy(made: Patient) -> int:
    """Leave the own stream one copy; return the number of the node that has it."""
    own = f"{made.name.upper()}_EVENTS"
    config = (await made.ask(f"STREAM.INFO.{own}"))["config"]
    await made.ask(f"STREAM.UPDATE.{own}", config | {"num_replicas": 1})

    async def alone() -> str:
        cluster = (await made.ask(f"STREAM.INFO.{own}"))["cluster"]
        return "" if cluster.get("replicas") else str(cluster.get("leader", ""))

    return int((await eventually(alone, what="the other copies are gone")).removeprefix("node"))


@pytest.mark.parametrize("kind", ["INDEX", "TRIGGER"])
async def test_a_fresh_schema_has_what_the_migrations_promise_and_nothing_else(
    kind: str, database: Database
) -> None:
    catalogue = {
        "INDEX": "SELECT indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
        " WHERE c.relnamespace = 'public'::regnamespace"
        " AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid)",
        "TRIGGER": "SELECT tgname::text FROM pg_trigger WHERE NOT tgisinternal",
    }
    connection = await asyncpg.connect(database.dsn)
    names = [name for (name,) in await connection.fetch(catalogue[kind])]
    await connection.close()
    assert sorted(names) == sorted(expected_objects(kind))


async def test_dead_events_are_counted_without_reading_those_that_wait(database: Database) -> None:
    async with opened(database, hints=WORKER_HINTS) as pool:
        plan = "\n".join(line for (line,) in await pool.fetch(f"EXPLAIN {STATEMENTS['doctor.outbox']}"))
    assert "idx_outbox_dead" in plan


def test_every_finding_is_provoked() -> None:
    provoked_here = {case.partition(VARIANT)[0] for case in {*CASES, *CASES_OF_TABLES}}
    assert {*provoked_here, *BELOW, *ELSEWHERE} == {kind.slug for kind in findings()}
    tests = Path(__file__).parents[1]
    assert [slug for slug, file in ELSEWHERE.items() if slug not in (tests / file).read_text()] == []


async def test_doctor_asks_every_address_that_the_workers_name_has(tmp_path: Path) -> None:
    """As those of a headless Service; `localhost` has one for each version of IP."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    addresses = {str(found[4][0]) for found in socket.getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)}
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        for address in addresses:
            reasons = partial(dict, handler=f"away from {address}")
            server = AdminServer(host=address, port=port, reasons=reasons, token=lambda: "s3cret")
            await server.start()
            stack.push_async_callback(server.close)
        given = {"admin_host": "localhost", "admin_port": port, "admin_token_file": token}
        seen = await read_readiness(Settings.model_validate(given))
    assert {where: answer["reasons"] for where, answer in seen.items() if answer} == {
        f"worker at {address}:{port}": {"handler": f"away from {address}"} for address in addresses
    }
