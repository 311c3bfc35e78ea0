"""Execute a statement in a service's open transaction, over the connection of its own library.

A connection is recognized by the names of its classes, so that no library is imported.
"""

import re
import sys
from typing import Any

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_ASYNCPG = {"asyncpg.Connection", "asyncpg.PoolConnectionProxy"}
_ASYNC_SESSIONS = {"sqlalchemy.AsyncSession", "sqlalchemy.async_scoped_session"}
_ASYNCHRONOUS = {
    *_ASYNCPG,
    *_ASYNC_SESSIONS,
    "psycopg.AsyncConnection",
    "psycopg.AsyncCursor",
    "sqlalchemy.AsyncConnection",
    "tortoise.BaseDBAsyncClient",
}
_PSYCOPG = {"psycopg.Connection", "psycopg2.connection"}
_PSYCOPG_CURSORS = {"psycopg.Cursor", "psycopg2.cursor"}
_SESSIONS = {"sqlalchemy.Session", "sqlalchemy.scoped_session"}
_DJANGO = {"django.ConnectionProxy", "django.BaseDatabaseWrapper"}
_SYNCHRONOUS = {
    *_PSYCOPG,
    *_PSYCOPG_CURSORS,
    *_SESSIONS,
    *_DJANGO,
    "django.CursorWrapper",
    "sqlalchemy.Connection",
}
_IDLE = 0
"""TransactionStatus of psycopg and psycopg2: the connection is outside any transaction."""


async def execute(connection: Any, sql: str, argument: str) -> int:
    """Execute a statement with the parameter ``$1`` over an asynchronous connection.

    Returns:
        The number of affected rows.

    Raises:
        TypeError: the connection is of no supported kind.
        ValueError: the connection is not in a transaction.
    """
    kinds = _kinds(connection)
    if kinds & _ASYNC_SESSIONS:
        return await execute(await connection.connection(), sql, argument)
    if "tortoise.BaseDBAsyncClient" in kinds:
        async with connection.acquire_connection() as acquired:
            return await execute(acquired, sql, argument)
    if "psycopg.AsyncCursor" in kinds:
        return await execute(connection.connection, sql, argument)
    if kinds & _ASYNCPG:
        _require_transaction(connection.is_in_transaction())
        return int((await connection.execute(sql, argument)).rpartition(" ")[2])
    if "psycopg.AsyncConnection" in kinds:
        _require_transaction(_in_psycopg_transaction(connection))
        cursor = await connection.execute(_with_percent(sql), (argument,))
        if cursor.rowcount < 0:  # in pipeline mode: the end of an inner pipeline waits for the result
            async with connection.pipeline():
                pass
        return int(cursor.rowcount)
    if "sqlalchemy.AsyncConnection" in kinds:
        _require_transaction(_in_sqlalchemy_transaction(connection.sync_connection))
        return int((await connection.execute(*_sqlalchemy(sql, argument))).rowcount)
    raise _unsupported(connection, is_other=bool(kinds & _SYNCHRONOUS))


def execute_sync(connection: Any, sql: str, argument: str) -> int:
    """Execute a statement over a synchronous connection; otherwise the same as ``execute``."""
    kinds = _kinds(connection)
    if kinds & _SESSIONS:
        return execute_sync(connection.connection(), sql, argument)
    if kinds & _PSYCOPG_CURSORS:
        return execute_sync(connection.connection, sql, argument)
    if "django.CursorWrapper" in kinds:
        return execute_sync(connection.db, sql, argument)
    if kinds & _PSYCOPG:
        _require_transaction(_in_psycopg_transaction(connection))
        return _execute_on_cursor(connection, sql, argument)
    if kinds & _DJANGO and getattr(connection, "vendor", "") == "postgresql":
        _require_transaction(connection.in_atomic_block or not connection.get_autocommit())
        return _execute_on_cursor(connection, sql, argument)
    if "sqlalchemy.Connection" in kinds:
        _require_transaction(_in_sqlalchemy_transaction(connection))
        return int(connection.execute(*_sqlalchemy(sql, argument)).rowcount)
    raise _unsupported(connection, is_other=bool(kinds & _ASYNCHRONOUS))


def in_schema(sql: str, table: str, schema: str | None) -> str:
    """Return the statement with the schema before the name of its table; None: the search path decides.

    Raises:
        ValueError: the schema's name does not consist of letters, digits and underscores.
    """
    if schema is None:
        return sql
    if not _SCHEMA.fullmatch(schema):
        raise ValueError("the schema's name must consist of letters, digits and underscores")
    return sql.replace(table, f'"{schema}".{table}')


def _kinds(connection: object) -> set[str]:
    """Return the names of the connection's classes as ``library.Class``."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}


def _execute_on_cursor(connection: Any, sql: str, argument: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_with_percent(sql), (argument,))
        if cursor.rowcount < 0:  # as above
            with connection.pipeline():
                pass
        return int(cursor.rowcount)


def _with_percent(sql: str) -> str:
    return sql.replace("$1", "%s")


def _sqlalchemy(sql: str, argument: str) -> tuple[Any, dict[str, str]]:
    return sys.modules["sqlalchemy"].text(sql.replace("$1", ":argument")), {"argument": argument}


def _in_psycopg_transaction(connection: Any) -> bool:
    return not connection.autocommit or connection.info.transaction_status != _IDLE


def _in_sqlalchemy_transaction(connection: Any) -> bool:
    return not getattr(connection.connection.dbapi_connection, "autocommit", False)


def _require_transaction(is_open: bool) -> None:
    if not is_open:
        raise ValueError("no transaction is open: begin the transaction of your change first")


def _unsupported(connection: object, *, is_other: bool) -> TypeError:
    if is_other:
        return TypeError(
            f"{type(connection)} does not fit: enqueue and `async with` take asynchronous connections,"
            " enqueue_sync and `with` take synchronous ones"
        )
    return TypeError(
        f"{type(connection)} is not supported: pass an open connection or session, not a pool or engine, of"
        " asyncpg, psycopg, psycopg2, SQLAlchemy, SQLModel, Django or Tortoise, to PostgreSQL"
    )
