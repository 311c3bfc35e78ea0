"""Doctor finds nothing where all is well, and whatever is wrong; each finding is provoked for real."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from sea_mq_worker.adapters.postgres.connection import WORKER_HINTS
from sea_mq_worker.adapters.postgres.migrations import migrate
from sea_mq_worker.adapters.postgres.promised import promised
from sea_mq_worker.bootstrap.doctor import KINDS, Severity, examine
from sea_mq_worker.bootstrap.doctor import database as judging
from sea_mq_worker.embedded import EmbeddedPostgres
from tests.integration.doctor_cases import CASES, CASES_OF_TABLES, Provoke
from tests.security.test_sql import STATEMENTS
from tests.support.checkups import Patient, patient
from tests.support.nats_cluster import nats_cluster
from tests.support.pooler import transaction_pooler
from tests.support.rows import opened
from tests.support.servers import Database, PostgresAddress, scratch_database
from tests.support.waiting import eventually

ALSO = {"subjects_elsewhere": {"subjects_uncovered"}}
"""What cannot be provoked without something else."""

BELOW = {
    *("fsync_off", "sync_unknown", "schema_version", "transaction_prepared_long", "pooler_undeclared"),
    *("notify_lost", "stream_single_copy", "stream_replica_offline", "stream_unavailable"),
}
ELSEWHERE = {
    "rights_missing": "security/test_doctor_rights.py",
    "rights_of_a_reader": "security/test_doctor_rights.py",
    "broker_refuses": "security/test_doctor_rights.py",
    "handler_untrusted": "security/test_tls.py",
}


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


@pytest.mark.parametrize("slug", CASES_OF_TABLES)
async def test_what_is_wrong_with_tables_is_found_and_ends_by_what_mends_it(
    slug: str, well: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await provoked(slug, CASES_OF_TABLES[slug], well, monkeypatch)


@pytest.mark.parametrize("slug", CASES)
async def test_what_is_wrong_beside_tables_is_found_and_ends_by_what_mends_it(
    slug: str, beside: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await provoked(slug, CASES[slug], beside, monkeypatch)


async def provoked(slug: str, provoke: Provoke, p: Patient, patch: pytest.MonkeyPatch) -> None:
    """Make one thing wrong, see that doctor finds it alone, mend it, and see that nothing is left."""
    mend = await provoke(p, patch)
    found = await p.examined()
    assert set(found) == {slug} | ALSO.get(slug, set()), found
    if mend:
        await mend(found[slug])
    elif found[slug].sql:
        await p.sql(found[slug].sql)
    if mend or found[slug].sql:
        assert await p.examined() == {}


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
        yield made


async def test_a_healthy_system_has_no_finding_but_what_cannot_be_known(sound: Patient) -> None:
    found = await examine(sound.settings())
    assert [(finding.slug, finding.severity) for finding in found] == [("sync_unknown", Severity.INFO)]


async def test_a_setting_of_the_server_is_found_and_mended_by_what_is_printed(sound: Patient) -> None:
    await sound.sql("ALTER SYSTEM SET autovacuum = off")
    await sound.sql("SELECT pg_reload_conf()")
    off = await eventually(sound.examined, what="the server has read its settings")
    assert set(off) == {"autovacuum_off"}
    await sound.sql(off["autovacuum_off"].sql)
    await sound.sql("SELECT pg_reload_conf()")
    await finds(sound)


async def test_a_prepared_transaction_is_found(sound: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_LEASES", 0)
    await sound.sql("BEGIN; CREATE TABLE x (); PREPARE TRANSACTION 'half of it'")
    found = await sound.examined()
    assert set(found) == {"transaction_prepared_long"}
    await sound.sql(found["transaction_prepared_long"].sql)
    assert await sound.examined() == {}


async def test_a_pooler_that_is_not_declared_is_found(sound: Patient, durable: EmbeddedPostgres) -> None:
    async with transaction_pooler(durable) as url:
        sound.given["database_url"] = url
        assert set(await sound.examined()) == {"pooler_undeclared"}
        sound.given["database_pooler"] = True
        assert await sound.examined() == {}


async def test_a_proxy_that_keeps_notifications_back_is_found(
    sound: Patient, durable: EmbeddedPostgres
) -> None:
    """With one session, and settings that stand in the database, all else works through it."""
    await sound.sql("ALTER DATABASE postgres SET search_path = public, pg_temp")
    async with transaction_pooler(durable, sessions=1, refuses=False) as url:
        sound.given["database_url"] = url
        assert set(await sound.examined()) == {"notify_lost"}
        sound.given["outbox_notify"] = False
        assert await sound.examined() == {}
    await sound.sql("ALTER DATABASE postgres RESET search_path")


async def test_a_server_that_does_not_sync_is_found(well: Patient) -> None:
    found = {finding.slug for finding in await examine(well.settings())}
    assert ("fsync_off" in found) == (await well.pool.fetchval("SHOW fsync") == "off")


async def test_a_missing_schema_is_found_and_made(well: Patient, postgres_server: PostgresAddress) -> None:
    async with scratch_database(postgres_server, prefix="empty_") as empty:
        well.given["database_url"] = empty.dsn
        found = await well.examined()
        assert set(found) == {"schema_version"}
        await well.command(found["schema_version"])
        assert await well.examined() == {}


async def test_a_cluster_is_told_by_what_is_away_of_it(
    database: Database, names: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp
    async with (
        nats_cluster(folder, room_bytes=2**30) as nodes,
        patient(database, nodes[0].url, names, folder("files"), stream_replicas=3) as made,
    ):
        made.given["nats_url"] = ",".join(node.url for node in nodes)
        await finds(made)
        assert "sync_unknown" not in {finding.slug for finding in await examine(made.settings())}
        holder = nodes[await single_copy(made)]
        await finds(made, "stream_single_copy", "topology_differs")
        await holder.stop()
        await finds(made, "stream_unavailable", "stream_replica_offline")
        others = [node for node in nodes if node is not holder]
        await others[0].stop()
        await finds(made, "broker_unreachable")
        await asyncio.gather(holder.start(), others[0].start())
        await finds(made, "stream_single_copy", "topology_differs")
        await made.command((await made.examined())["topology_differs"])
        await finds(made)


async def single_copy(made: Patient) -> int:
    """Leave the own stream one copy; return the number of the node that has it."""
    own = f"{made.name.upper()}_EVENTS"
    config = (await made.ask(f"STREAM.INFO.{own}"))["config"]
    await made.ask(f"STREAM.UPDATE.{own}", config | {"num_replicas": 1})

    async def alone() -> str:
        cluster = (await made.ask(f"STREAM.INFO.{own}"))["cluster"]
        return "" if cluster.get("replicas") else str(cluster.get("leader", ""))

    return int((await eventually(alone, what="the other copies are gone")).removeprefix("node"))


async def finds(made: Patient, *slugs: str) -> None:
    """Wait until doctor finds just these: servers take their time to read settings, or elect leaders."""

    async def found() -> bool:
        return set(await made.examined()) == set(slugs)

    await eventually(found, within=60, what=f"doctor finds {slugs}")


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
    assert sorted(names) == sorted(promised(kind))


async def test_dead_events_are_counted_without_reading_those_that_wait(database: Database) -> None:
    async with opened(database, hints=WORKER_HINTS) as pool:
        plan = "\n".join(line for (line,) in await pool.fetch(f"EXPLAIN {STATEMENTS['doctor.outbox']}"))
    assert "idx_outbox_dead" in plan


def test_every_finding_is_provoked() -> None:
    assert {*CASES, *CASES_OF_TABLES, *BELOW, *ELSEWHERE} == {kind.slug for kind in KINDS}
    tests = Path(__file__).parents[1]
    assert [slug for slug, file in ELSEWHERE.items() if slug not in (tests / file).read_text()] == []
