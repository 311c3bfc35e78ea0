"""What stands in a search path besides the worker's tables is never called, and no name becomes SQL."""

import ast
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

import sea_mq_worker
from sea_mq_worker.adapters.postgres.connection import connect_pool
from sea_mq_worker.adapters.postgres.queries import all_queries
from sea_mq_worker.adapters.postgres.schema.migrations import check_version, migrate
from sea_mq_worker.producer import enqueue
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import SettingsError, load_settings
from tests.support.builders import enqueueable
from tests.support.servers import Database

TYPES = (
    *(
        "text",
        "name",
        "int2",
        "int4",
        "int8",
        "float8",
        "numeric",
        "uuid",
        "timestamptz",
        "interval",
        "jsonb",
    ),
    *("bytea", "boolean", "tid", "oid", "regclass", "text[]", "uuid[]", "int4[]", "int8[]"),
)
OPERATORS = ("||", "=", "<", ">", "<=", ">=", "<>", "+", "-", "*", "/", "&", "->", "->>", "#>", "#>>")
ANY_NUMBER = {"format", "concat", "concat_ws", "jsonb_build_object", "jsonb_build_array"}
"""Take arguments of any type and number, so that whatever they are given, another function can fit better."""
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")

USED = """
SELECT p.proname, bool_or(p.prokind = 'a') AS aggregate
  FROM pg_proc p
 WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY ($1::text[]) AND p.prokind <> 'w'
 GROUP BY p.proname
"""
CALLED = """
SELECT d.refobjid::regprocedure::text FROM pg_depend d
 WHERE d.classid = 'pg_proc'::regclass AND d.objid = $1
   AND d.refclassid = 'pg_proc'::regclass AND left(d.refobjid::regprocedure::text, 14) <> 'public.outbox_'
 UNION ALL
SELECT d.refobjid::regoperator::text FROM pg_depend d
 WHERE d.classid = 'pg_proc'::regclass AND d.objid = $1
   AND d.refclassid = 'pg_operator'::regclass
"""
"""What function $1 calls besides the system's own and the functions of the migrations."""
PROBE = "SELECT oid FROM pg_proc WHERE proname = 'probe' AND pronamespace = 'public'::regnamespace"


def statements() -> dict[str, str]:
    """Return every statement of the product: those of ``sql/queries`` and those in modules."""
    found = {}
    for file in sorted((resource_folder("sql") / "queries").glob("*.sql")):
        found |= {f"{file.stem}.{name}": query.sql for name, query in all_queries(file.stem)}
    return found | dict(in_modules())


def in_modules() -> Iterator[tuple[str, str]]:
    """Return the constants of modules that are SQL, read without importing what they need."""
    package = Path(sea_mq_worker.__path__[0])
    for file in sorted(package.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(str(text))):
                    if text.lstrip().startswith(VERBS):
                        yield f"{file.relative_to(package)}:{name}", text


STATEMENTS = statements()


@pytest.fixture
async def session(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A superuser with the worker's search path."""
    connection = await asyncpg.connect(database.dsn, server_settings={"search_path": '"public", pg_temp'})
    try:
        yield connection
    finally:
        await connection.close()


async def parameters(session: asyncpg.Connection) -> dict[str, str]:
    """Return the types of each statement's parameters, as long as nobody is in the way."""
    found = {}
    for name, statement in STATEMENTS.items():
        types = (await session.prepare(statement)).get_parameters()
        found[name] = ", ".join(one.name if "[]" in one.name else f'"{one.name}"' for one in types)
    return found


async def plant(session: asyncpg.Connection) -> None:
    """Put a better match for every call with one or two arguments, and for every operator, into the path."""
    words = sorted({word for text in STATEMENTS.values() for word in re.findall(r"\b([a-z_0-9]+)\(", text)})
    argument_lists = [(one,) for one in TYPES] + [(one, other) for one in TYPES for other in TYPES]
    planted = []
    for name, aggregate in await session.fetch(USED, words):
        for arguments in argument_lists:
            given = ", ".join(arguments)
            body = "LANGUAGE sql AS 'SELECT NULL::text'"
            if aggregate:
                planted.append(f'CREATE FUNCTION public."state_{name}"(text, {given}) RETURNS text {body}')
                definition = f'SFUNC = public."state_{name}", STYPE = text'
                planted.append(f'CREATE AGGREGATE public."{name}"({given}) ({definition})')
            else:
                planted.append(f'CREATE FUNCTION public."{name}"({given}) RETURNS text {body}')
    for one, other in (pair for pair in argument_lists if len(pair) > 1):
        body = "RETURNS boolean LANGUAGE sql AS 'SELECT true'"
        planted.append(f"CREATE FUNCTION public.planted(a {one}, b {other}) {body}")
        for operator in OPERATORS:
            sides = f"LEFTARG = {one}, RIGHTARG = {other}"
            planted.append(f"CREATE OPERATOR public.{operator} ({sides}, FUNCTION = public.planted)")
    await session.execute(";".join(planted))


@pytest.mark.fault("S05")
async def test_no_statement_calls_what_somebody_else_put_into_the_schema(
    session: asyncpg.Connection, database: Database
) -> None:
    """PostgreSQL takes the function whose types fit best, wherever in the path it is.

    A function with the statement as its body tells what the statement calls, without running it.
    """
    types = await parameters(session)
    await plant(session)
    aside = await asyncpg.connect(database.dsn, server_settings={"search_path": "pg_catalog"})
    called = {}
    for name, statement in STATEMENTS.items():
        try:
            await session.execute(
                f"CREATE FUNCTION public.probe({types[name]}) RETURNS void BEGIN ATOMIC {statement}; END"
            )
        except asyncpg.PostgresError as error:
            called[name] = [f"does not parse any more: {error.args[0]}"]
            continue
        probe = await aside.fetchval(PROBE)
        called[name] = [row[0] for row in await aside.fetch(CALLED, probe)]
        await session.execute("DROP FUNCTION public.probe")
    await aside.close()
    assert len(called) > 40
    assert {name: strangers for name, strangers in called.items() if strangers} == {}


@pytest.mark.fault("S05")
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_function_that_takes_anything_is_called_by_its_full_name(name: str) -> None:
    called = re.findall(r"(pg_catalog\.)?\b([a-z_]+)\(", STATEMENTS[name])
    assert [function for schema, function in called if function in ANY_NUMBER and not schema] == []


@pytest.mark.fault("S05")
async def test_a_trigger_calls_nothing_of_the_writers_search_path(database: Database) -> None:
    """A service writes events in its own session, where others may have put functions and operators."""
    service = await asyncpg.connect(database.dsn)
    caught = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'called with the rights of %', current_user; END $$"
    await service.execute(f"""
        CREATE FUNCTION hashtext(name) RETURNS int {caught};
        CREATE FUNCTION format(text, name, name) RETURNS text {caught};
        CREATE FUNCTION said(text, int) RETURNS text {caught};
        CREATE OPERATOR || (LEFTARG = text, RIGHTARG = int, FUNCTION = said);
    """)
    with pytest.raises(asyncpg.RaiseError, match="called with the rights"):
        await service.fetchval("SELECT hashtext('x'::name)")
    relay = await asyncpg.connect(database.dsn)
    await relay.execute("SELECT pg_advisory_lock(7177, pg_catalog.hashtext('public'::text))")
    async with service.transaction():
        await enqueue(service, enqueueable())
    with pytest.raises(asyncpg.CheckViolationError, match="not published or dead"):
        await service.execute("TRUNCATE outbox_events")
    await relay.close()
    await service.close()


@pytest.mark.fault("S05")
@pytest.mark.parametrize("schema", ["orders", "Orders", "select", "_0", "o" * 63])
async def test_every_plain_name_is_a_schema(schema: str, database: Database) -> None:
    await migrate(database.dsn, schema=schema)
    pool = await connect_pool(
        database.dsn, schema=schema, size_max=1, application_name="test",
        statement_timeout_seconds=10, connect_timeout_seconds=10,
    )  # fmt: skip
    async with pool:
        await check_version(pool)
        assert await pool.fetchval("SELECT current_schema()") == schema


@pytest.mark.fault("S05")
@pytest.mark.parametrize(
    "schema",
    [
        *('or"ders', "orders; DROP TABLE outbox_events", "orders, public", "a.b", "\u00f6r"),
        *("o" * 64, "1o", "pg_x", "$user"),
    ],
)
def test_a_name_that_might_be_sql_is_refused(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEA_MQ_DATABASE_SCHEMA", schema)
    with pytest.raises(SettingsError, match="SEA_MQ_DATABASE_SCHEMA: expected at most 63 letters"):
        load_settings()
