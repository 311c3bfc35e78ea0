"""Objects in a search path besides the worker's tables are never called, and no name becomes SQL."""

import ast
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

import sea_mq_worker
from sea_mq_worker.errors import ContractError
from sea_mq_worker.postgres.migrations import check_version, migrate
from sea_mq_worker.postgres.pool import quoted_schema
from sea_mq_worker.postgres.queries import load_named
from sea_mq_worker.producer import enqueue
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import SettingsError, load_settings
from tests.support.builders import enqueueable
from tests.support.rows import opened
from tests.support.servers import Database, database_connection

ANY_NUMBER = {"format", "concat", "concat_ws", "jsonb_build_object", "jsonb_build_array"}
"""Take arguments of any type and number, so that whatever they are given, another function can fit better."""
SQL = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH)\s")
BAIT = "a statement that takes what is planted"

USED = {
    "types": """
SELECT format_type(t.oid, NULL) FROM pg_type t
 WHERE t.oid = ANY ($1) AND t.typtype IN ('b', 'r', 'e') AND t.typname <> 'unknown'
""",
    "operators": "SELECT DISTINCT o.oprname FROM pg_operator o WHERE o.oid = ANY ($1)",
    "functions": """
SELECT DISTINCT other.proname, other.pronargs, other.prokind = 'a' AS aggregate
  FROM pg_proc used
  JOIN pg_proc other ON other.proname = used.proname AND other.pronamespace = used.pronamespace
 WHERE used.oid = ANY ($1) AND used.pronamespace = 'pg_catalog'::regnamespace AND other.prokind <> 'w'
   AND other.pronargs BETWEEN 1 AND 2 AND used.oid NOT IN (SELECT castfunc FROM pg_cast)
""",
}
"""What PostgreSQL has found in the statements, by what their parse trees hold: $1 are its oids."""
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
        found |= {f"{file.stem}.{name}": query.sql for name, query in load_named(file.stem).items()}
    return found | dict(in_modules())


def in_modules() -> Iterator[tuple[str, str]]:
    """Return the texts of modules that are SQL, read without importing what they need; not those of `dev`."""
    package = Path(sea_mq_worker.__path__[0])
    for file in sorted(package.rglob("*.py")):
        if "dev" not in file.parts:
            tree = ast.parse(file.read_text())
            pieces = [
                piece for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values
            ]
            for node in ast.walk(tree):
                match node:
                    case ast.Constant(str(text)) if node not in pieces and SQL.match(text):
                        yield f"{file.relative_to(package)}:{node.lineno}", text


STATEMENTS = statements()
PROBED = STATEMENTS | {BAIT: "SELECT 2 ^ 3"}


@pytest.fixture
async def session(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A superuser with the worker's search path."""
    settings = {"search_path": '"public", pg_temp'}
    async with database_connection(database.dsn, server_settings=settings) as connection:
        yield connection


async def make_probe(session: asyncpg.Connection, name: str, parameters: str) -> None:
    """Have PostgreSQL parse a statement as the body of a function."""
    body = f"BEGIN ATOMIC {PROBED[name]}; END"
    await session.execute(f"CREATE FUNCTION public.probe({parameters}) RETURNS void {body}")


async def parameters(session: asyncpg.Connection) -> dict[str, str]:
    """Return the types of each statement's parameters, as long as nobody is in the way."""
    found = {}
    for name, statement in PROBED.items():
        types = (await session.prepare(statement)).get_parameters()
        found[name] = ", ".join(one.name if "[]" in one.name else f'"{one.name}"' for one in types)
    return found


async def parse_trees(session: asyncpg.Connection) -> dict[str, str]:
    """Return what PostgreSQL has made of each statement."""
    types, found = await parameters(session), {}
    for name in PROBED:
        await make_probe(session, name, types[name])
        found[name] = await session.fetchval("SELECT prosqlbody::text FROM pg_proc WHERE proname = 'probe'")
        await session.execute("DROP FUNCTION public.probe")
    return found


async def plant(session: asyncpg.Connection) -> None:
    """Put a better match for every call with one or two arguments, and for every operator, into the path."""
    trees = " ".join((await parse_trees(session)).values())
    oids = {
        int(oid) for oid in re.findall(r":(?:\w*type|\w*typeid|opno|funcid|aggfnoid|winfnoid) (\d+)", trees)
    }
    found = {kind: await session.fetch(query, oids) for kind, query in USED.items()}
    types = [row[0] for row in found["types"]]
    argument_lists = {1: types, 2: [f"{one}, {other}" for one in types for other in types]}
    planted = []
    for name, number, aggregate in found["functions"]:
        for given in argument_lists[number]:
            body = "LANGUAGE sql AS 'SELECT NULL::text'"
            if aggregate:
                planted.append(f'CREATE FUNCTION public."state_{name}"(text, {given}) RETURNS text {body}')
                definition = f'SFUNC = public."state_{name}", STYPE = text'
                planted.append(f'CREATE AGGREGATE public."{name}"({given}) ({definition})')
            else:
                planted.append(f'CREATE FUNCTION public."{name}"({given}) RETURNS text {body}')
    for given in argument_lists[2]:
        one, other = given.split(", ")
        body = "RETURNS boolean LANGUAGE sql AS 'SELECT true'"
        planted.append(f"CREATE FUNCTION public.planted({given}) {body}")
        for (operator,) in found["operators"]:
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
    called = {}
    async with database_connection(database.dsn, server_settings={"search_path": "pg_catalog"}) as aside:
        for name in PROBED:
            try:
                await make_probe(session, name, types[name])
            except asyncpg.PostgresError as error:
                called[name] = [f"does not parse any more: {error.args[0]}"]
                continue
            probe = await aside.fetchval(PROBE)
            called[name] = [row[0] for row in await aside.fetch(CALLED, probe)]
            await session.execute("DROP FUNCTION public.probe")
    assert len(called) > 40
    found = {name: strangers for name, strangers in called.items() if strangers}
    assert found == {BAIT: ["public.^(integer,integer)"]}


@pytest.mark.fault("S05")
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_function_that_takes_anything_is_called_by_its_full_name(name: str) -> None:
    called = re.findall(r"(pg_catalog\.)?\b([a-z_]+)\(", STATEMENTS[name])
    assert [function for schema, function in called if function in ANY_NUMBER and not schema] == []


@pytest.mark.fault("S05")
async def test_a_trigger_calls_nothing_of_the_writers_search_path(database: Database) -> None:
    """A service writes events in its own session, where others may have put functions and operators."""
    caught = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'called with the rights of %', current_user; END $$"
    async with database_connection(database.dsn) as service, database_connection(database.dsn) as relay:
        await service.execute(f"""
            CREATE FUNCTION hashtext(name) RETURNS int {caught};
            CREATE FUNCTION format(text, name, name) RETURNS text {caught};
            CREATE FUNCTION said(text, int) RETURNS text {caught};
            CREATE OPERATOR || (LEFTARG = text, RIGHTARG = int, FUNCTION = said);
        """)
        with pytest.raises(asyncpg.RaiseError, match="called with the rights"):
            await service.fetchval("SELECT hashtext('x'::name)")
        await relay.execute("SELECT pg_advisory_lock(7177, pg_catalog.hashtext('public'::text))")
        async with service.transaction():
            await enqueue(service, enqueueable())
        with pytest.raises(asyncpg.CheckViolationError, match="not published or dead"):
            await service.execute("TRUNCATE outbox_events")


@pytest.mark.fault("S05")
@pytest.mark.parametrize("schema", ["orders", "Orders", "select", "_0", "o" * 63])
async def test_every_plain_name_is_a_schema(schema: str, database: Database) -> None:
    await migrate(database.dsn, schema=schema)
    async with opened(database, schema=schema) as pool:
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
    with pytest.raises(ContractError, match="name must be"):  # where no settings are read
        quoted_schema(schema)
