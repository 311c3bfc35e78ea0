"""The tables and functions of a migrated database, with their comments.

They come from the catalog of an embedded PostgreSQL, after the migrations and ``sql/roles.sql``.
"""

import asyncio
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import asyncpg

from sea_mq_worker.dev.servers import EmbeddedPostgres
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.resources import resource_folder
from tests.support.servers import database_connection
from tools.docs.markdown import code, table

_TABLES = """
SELECT oid, relname AS name, obj_description(oid, 'pg_class') AS meaning FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY relname"""
_COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required,
       a.attnum = ANY (k.conkey) AS in_key,
       CASE WHEN a.attgenerated <> '' OR a.attidentity <> '' THEN 'generated'
            ELSE '`' || pg_get_expr(d.adbin, d.adrelid, true) || '`' END AS value,
       col_description(a.attrelid, a.attnum) AS meaning
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
       LEFT JOIN pg_constraint k ON k.conrelid = a.attrelid AND k.contype = 'p'
 WHERE a.attrelid = $1::oid AND a.attnum > 0 ORDER BY a.attnum"""
_FUNCTIONS = """
SELECT p.proname AS name, obj_description(p.oid, 'pg_proc') AS meaning,
       ARRAY(SELECT CASE x.grantee WHEN 0 THEN 'everyone' ELSE x.grantee::regrole::text END
               FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x
              WHERE x.grantee <> p.proowner ORDER BY 1) AS callers
  FROM pg_proc p
 WHERE p.pronamespace = 'public'::regnamespace AND p.prorettype <> 'trigger'::regtype ORDER BY p.oid"""

Record = Mapping[str, str]


def tables_and_functions() -> str:
    """Return a section for each table that is not internal, and one for functions that a role may call."""
    return asyncio.run(_described())


async def _described() -> str:
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedPostgres(Path(folder), settings={"fsync": "off"}) as server:
            await migrate(server.dsn)
            roles = str(resource_folder("sql") / "roles.sql")
            psql = [str(server.programs / "psql"), "-Xqv", "ON_ERROR_STOP=1", "-f", roles, server.dsn]
            subprocess.run(psql, check=True, capture_output=True)  # noqa: ASYNC221, S603 - nothing else runs in this loop
            async with database_connection(server.dsn) as connection:
                tables = await connection.fetch(_TABLES)
                public = [await _table(connection, one) for one in tables if not _is_internal(one)]
                return "\n".join([*public, await _functions(connection)])


def _is_internal(described: Record) -> bool:
    return described["name"].startswith("sea_mq_")


async def _table(connection: asyncpg.Connection, described: Record) -> str:
    columns = await connection.fetch(_COLUMNS, described["oid"])
    return f"## {described['name']}\n\n{described['meaning']}\n\n{''.join(map(_column, columns))}"


def _column(column: Record) -> str:
    key = ", key" if column["in_key"] else ""
    null = "" if column["required"] else ", null"
    default = f", {column['value']}".replace("::text", "") if column["value"] else ""
    return f"- `{column['name']}` ({_short(column['type'])}{key}{null}{default}): {column['meaning']}\n"


async def _functions(connection: asyncpg.Connection) -> str:
    rows = await connection.fetch(_FUNCTIONS)
    return "## Functions\n\n" + table(
        ("function", "effect", "for"),
        ((f"`{one['name']}`", one["meaning"], code(one["callers"])) for one in rows if one["callers"]),
    )


def _short(types: str) -> str:
    return types.replace("timestamp with time zone", "timestamptz")
