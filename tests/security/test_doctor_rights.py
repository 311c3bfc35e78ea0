"""Doctor names each right that the worker's login lacks, and asks for none that its own does not have."""

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from pydantic import SecretStr

from sea_mq_worker.doctor import examine
from sea_mq_worker.settings import Settings
from tests.security import test_nats_accounts, test_postgres_roles
from tests.security.test_nats_accounts import FILE, settings
from tests.security.test_postgres_roles import Roles
from tests.support.checkups import Patient, patient
from tests.support.configured_nats import ConfiguredNats
from tests.support.partitions import partition_outbox
from tests.support.servers import Database
from tests.support.waiting import eventually

GRANTED = """
SELECT column_name FROM information_schema.column_privileges
 WHERE grantee = $1 AND table_name = $2 AND privilege_type = $3
 ORDER BY column_name
"""

prefix, owner = test_postgres_roles.prefix, test_postgres_roles.owner
roles = test_postgres_roles.roles
server = test_nats_accounts.server


@pytest.fixture
async def well(roles: Roles, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Patient]:
    """A healthy system whose worker has a role of its own."""
    async with patient(roles.database, nats_url, names, tmp_path) as made:
        made.given["database_url"] = roles.dsn("relay")
        yield made


@pytest.mark.parametrize("kind", ["relay", "operator"])
async def test_with_the_rights_of_the_worker_nothing_is_found(kind: str, well: Patient, roles: Roles) -> None:
    well.given["database_url"] = roles.dsn(kind)
    for divide in (False, True):
        if divide:
            await partition_outbox(well.database.dsn)
        assert await well.examined() == {}
        assert (await examine(well.settings())).not_checked == []


async def test_a_readers_rights_are_no_problem_and_no_proof_of_the_workers(
    well: Patient, roles: Roles
) -> None:
    well.given["database_url"] = roles.dsn("reader")
    assert await well.examined() == {}
    assert "this login may only read" in str((await examine(well.settings())).not_checked)
    well.given["database_url"] = roles.dsn("relay")
    assert await well.examined() == {}


@pytest.mark.parametrize(
    ("privilege", "table"),
    [
        ("INSERT", "sea_mq_context"),
        ("UPDATE", "sea_mq_consumers"),
        ("UPDATE", "outbox_events"),
        ("INSERT", "inbox_messages"),
        ("UPDATE", "inbox_messages"),
    ],
)
async def test_what_the_worker_may_no_longer_do_is_found_and_granted_by_what_is_printed(
    privilege: str, table: str, well: Patient, roles: Roles
) -> None:
    columns = await well.pool.fetch(GRANTED, f"{roles.prefix}_relay", table, privilege)
    await well.sql(f"REVOKE {privilege} ON {table} FROM {roles.prefix}_relay")
    found = await well.examined()
    assert set(found) == {"rights_missing"}
    named = found["rights_missing"].what.removeprefix(f"no {privilege} (").removesuffix(f") on {table}")
    assert sorted(named.split(", ")) == [column for (column,) in columns]
    await well.paste(found["rights_missing"])
    assert await well.examined() == {}


async def test_rows_that_are_hidden_from_the_worker_are_found_and_shown_by_what_is_printed(
    well: Patient,
) -> None:
    await well.sql("ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY")
    found = await well.finds("row_security")
    await well.paste(found["row_security"])
    await well.finds()


@pytest.mark.parametrize("user", ["sea_worker", "sea_operator"])
async def test_the_users_of_the_worker_and_of_operators_may_ask_all_of_it(
    user: str, server: ConfiguredNats, database: Database
) -> None:
    assert await refusals(settings(server, user), database) == []


async def test_each_question_that_is_refused_is_named_and_hides_no_other(
    server: ConfiguredNats, database: Database
) -> None:
    own = settings(server, "sea_operator")
    subjects = ["$JS.API.STREAM.NAMES", "JS.VIBESPRO.API.STREAM.INFO.VIBESPRO_EVENTS"]
    with denied(server, subjects):
        found = await eventually(lambda: refusals(own, database), what="the server has read its permissions")
    assert [
        next(subject for subject in subjects if subject.lower() in reported.lower()) for reported in found
    ] == subjects
    await eventually(lambda: refusals(own, database), until=lambda found: not found)


@contextlib.contextmanager
def denied(server: ConfiguredNats, subjects: Sequence[str]) -> Iterator[None]:
    """Have a running server permit nobody these subjects, for the length of a block."""
    file = server.folder / FILE.name
    complete = file.read_text()
    lines = complete.splitlines(keepends=True)
    less = "".join(line for line in lines if line.strip().strip('"') not in subjects)
    for permissions in (less, complete):
        file.write_text(permissions)
        os.kill(server.pid, signal.SIGHUP)
        if permissions != complete:
            yield


async def refusals(own: Settings, database: Database) -> Sequence[str]:
    given = own.model_copy(update={"database_url": SecretStr(database.dsn)})
    findings = (await examine(given)).findings
    return [finding.what for finding in findings if finding.slug == "broker_refuses"]
