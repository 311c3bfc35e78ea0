"""Connections of a service: each opens a transaction with a change in it, and ends the transaction."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import django
import django.conf
import django.db
import django.db.transaction
import psycopg
import psycopg2
import sqlalchemy as sa
import sqlmodel
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_asyncio
from sqlmodel.ext.asyncio import session as sqlmodel_asyncio
from tortoise import Model, Tortoise, fields
from tortoise.transactions import in_transaction

CHANGE = "INSERT INTO orders VALUES ('o-1')"

Transaction = Callable[..., AbstractAsyncContextManager[Any]]
"""Takes a DSN and whether to commit; its block is in the transaction of the change."""


def _end(session: Any, *, commit: bool) -> Any:
    return (session.commit if commit else session.rollback)()


def url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


def _login(dsn: str, *names: str) -> dict[str, Any]:
    """Return the parts of a DSN by the names that a library has for host, port, user, password, database."""
    server = urlsplit(dsn)
    parts = server.hostname, server.port, server.username, server.password or "", server.path[1:]
    return dict(zip(names, parts, strict=True))


# --- asynchronous ones


@asynccontextmanager
async def asyncpg_pool(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(dsn, min_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(CHANGE)
        yield connection
        await _end(transaction, commit=commit)


@asynccontextmanager
async def asyncpg_connection(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    async with asyncpg_pool(dsn, commit=commit) as proxy:
        yield proxy._con


@asynccontextmanager
async def psycopg_async(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute(CHANGE)
        yield connection
        await _end(connection, commit=commit)


@asynccontextmanager
async def psycopg_async_cursor(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    async with psycopg_async(dsn, commit=commit) as connection, connection.cursor() as cursor:
        yield cursor


@asynccontextmanager
async def sqlalchemy_async_connection(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    engine = sa_asyncio.create_async_engine(url(dsn, "asyncpg"), poolclass=sa.NullPool)
    async with engine.connect() as connection:
        await connection.execute(sa.text(CHANGE))
        yield connection
        await _end(connection, commit=commit)


@asynccontextmanager
async def sqlmodel_async_session(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    """Open a subclass of SQLAlchemy's AsyncSession."""
    engine = sa_asyncio.create_async_engine(url(dsn, "psycopg"), poolclass=sa.NullPool)
    async with sqlmodel_asyncio.AsyncSession(engine) as session:
        await (await session.connection()).execute(sa.text(CHANGE))
        yield session
        await _end(session, commit=commit)


class Order(Model):
    """A model of Tortoise."""

    id = fields.CharField(9, primary_key=True)

    class Meta:
        table = "orders"


@asynccontextmanager
async def connected_tortoise(dsn: str, *, models: str) -> AsyncIterator[None]:
    """Lead Tortoise's default connection to a database; ``models`` is the module of its models."""
    login = _login(dsn, "host", "port", "user", "password", "database")
    default = {"engine": "tortoise.backends.asyncpg", "credentials": login}
    app = {"models": [models], "default_connection": "default"}
    await Tortoise.init(config={"connections": {"default": default}, "apps": {"shop": app}})
    try:
        yield
    finally:
        await Tortoise.close_connections()


@asynccontextmanager
async def tortoise(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    async with connected_tortoise(dsn, models=__name__), in_transaction("default") as connection:
        await Order.create(id="o-1")
        yield connection
        if not commit:
            await connection.rollback()


# --- synchronous ones


@asynccontextmanager
async def psycopg_connection(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    with psycopg.connect(dsn) as connection:
        connection.execute(CHANGE)
        yield connection
        _end(connection, commit=commit)


@asynccontextmanager
async def psycopg_autocommit_block(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        connection.transaction(force_rollback=not commit),
    ):
        connection.execute(CHANGE)
        yield connection


@asynccontextmanager
async def psycopg2_connection(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    with closing(psycopg2.connect(dsn)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(CHANGE)
        yield connection
        _end(connection, commit=commit)


@asynccontextmanager
async def sqlalchemy_connection(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    with sa.create_engine(url(dsn, "psycopg2"), poolclass=sa.NullPool).connect() as connection:
        connection.execute(sa.text(CHANGE))
        yield connection
        _end(connection, commit=commit)


@asynccontextmanager
async def sqlalchemy_scoped_session(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    engine = sa.create_engine(url(dsn, "psycopg"), poolclass=sa.NullPool)
    session = orm.scoped_session(orm.sessionmaker(engine))
    session.execute(sa.text(CHANGE))
    yield session
    _end(session, commit=commit)
    session.remove()


@asynccontextmanager
async def sqlmodel_session(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    """Open a subclass of SQLAlchemy's Session."""
    with sqlmodel.Session(sa.create_engine(url(dsn, "psycopg"), poolclass=sa.NullPool)) as session:
        session.connection().execute(sa.text(CHANGE))
        yield session
        _end(session, commit=commit)


@asynccontextmanager
async def django_connection(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
    with configured_django(dsn), django.db.transaction.atomic():
        with django.db.connection.cursor() as cursor:
            cursor.execute(CHANGE)
        yield django.db.connection
        django.db.transaction.set_rollback(not commit)


@contextmanager
def configured_django(dsn: str) -> Iterator[None]:
    """Lead Django's default connection to a database."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # a test may block its loop
    if not django.conf.settings.configured:
        django.conf.settings.configure(LOGGING_CONFIG=None)
        django.setup()
    login = _login(dsn, "HOST", "PORT", "USER", "PASSWORD", "NAME")
    default = {"ENGINE": "django.db.backends.postgresql", **login}
    handler = django.db.connections
    handler.databases.update(handler.configure_settings({"default": default}))
    try:
        yield
    finally:
        django.db.connection.close()
        del django.db.connections["default"]


def with_cursor(connect: Transaction) -> Transaction:
    """Open a cursor on a connection of a synchronous driver."""

    @asynccontextmanager
    async def opened(dsn: str, *, commit: bool = True) -> AsyncIterator[Any]:
        async with connect(dsn, commit=commit) as connection:
            with connection.cursor() as cursor:
                yield cursor

    opened.__name__ = connect.__name__.replace("connection", "cursor")
    return opened


ASYNCHRONOUS = (
    asyncpg_connection,
    asyncpg_pool,
    psycopg_async,
    psycopg_async_cursor,
    sqlalchemy_async_connection,
    sqlmodel_async_session,
    tortoise,
)
SYNCHRONOUS = (
    psycopg_connection,
    psycopg_autocommit_block,
    with_cursor(psycopg_connection),
    psycopg2_connection,
    with_cursor(psycopg2_connection),
    sqlalchemy_connection,
    sqlalchemy_scoped_session,
    sqlmodel_session,
    django_connection,
    with_cursor(django_connection),
)
