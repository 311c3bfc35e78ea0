"""The blocks of docs/how-to/producing.md, each run with the library that its heading names."""

import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from typing import Any

import asyncpg
import django.db.models
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
import tortoise
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import create_async_engine

from tests.integration.test_migrations import run_psql
from tests.support.documents import blocks
from tests.support.servers import Database
from tests.support.service_libraries import configured_django, connected_tortoise, url

PAGE = "docs/how-to/producing.md"
ORDER = 42
(_, EVENT), *REST = [(heading, text) for heading, language, text in blocks(PAGE) if language == "python"]
PROGRAMS = [(heading, text) for heading, text in REST if "def pay(" in text]
[SQL] = [text for _, language, text in blocks(PAGE) if language == "sql"]


class SQLAlchemyBase(orm.DeclarativeBase):
    pass


class SQLAlchemyOrder(SQLAlchemyBase):
    __tablename__ = "orders"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    paid: orm.Mapped[bool]


class TortoiseOrder(tortoise.Model):
    id = tortoise.fields.IntField(primary_key=True)
    paid = tortoise.fields.BooleanField()

    class Meta:
        table = "orders"


def django_order() -> Any:
    class Order(django.db.models.Model):
        id = django.db.models.IntegerField(primary_key=True)
        paid = django.db.models.BooleanField()

        class Meta:
            app_label = "shop"
            db_table = "orders"

        def __str__(self) -> str:
            return str(self.id)

    return Order


async def opened(stack: AsyncExitStack, library: str, dsn: str, *, is_async: bool) -> list[Any]:
    """Return what the program of a library gets before the order."""
    match library, is_async:
        case "asyncpg", True:
            given = await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=1))
        case "psycopg", True:
            given = await stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn))
        case "psycopg", False:
            given = stack.enter_context(psycopg.connect(dsn))
        case "psycopg2", False:
            given = stack.enter_context(closing(psycopg2.connect(dsn)))
        case "SQLAlchemy", True:
            given = create_async_engine(url(dsn, "asyncpg"))
            stack.push_async_callback(given.dispose)
        case "SQLAlchemy", False:
            given = sa.create_engine(url(dsn, "psycopg"))
            stack.callback(given.dispose)
        case "Django", False:
            given = stack.enter_context(configured_django(dsn))
        case "Tortoise", True:
            given = await stack.enter_async_context(connected_tortoise(dsn, models=__name__))
        case _:
            raise AssertionError(f"no connection of {library} is known")
    return [given] if given else []


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a database with an order that is not paid."""
    connection = await asyncpg.connect(database.dsn)
    try:
        await connection.execute("CREATE TABLE orders (id INT PRIMARY KEY, paid BOOL NOT NULL)")
        await connection.execute("INSERT INTO orders VALUES ($1, false)", ORDER)
        yield connection
    finally:
        await connection.close()


async def is_paid_with_one_event(reader: asyncpg.Connection) -> bool:
    events = await reader.fetch("SELECT event_type, ordering_key, payload FROM outbox_events")
    paid = await reader.fetchval("SELECT paid FROM orders WHERE id = $1", ORDER)
    return paid and [tuple(event) for event in events] == [("order.paid", "order-42", '{"order": 42}')]


@pytest.mark.parametrize(("library", "program"), PROGRAMS)
async def test_the_program_of_a_library_commits_change_and_event(
    database: Database, reader: asyncpg.Connection, library: str, program: str
) -> None:
    async with AsyncExitStack() as stack:
        models = {"SQLAlchemy": SQLAlchemyOrder, "Tortoise": TortoiseOrder}
        given = await opened(stack, library, database.dsn, is_async="async def" in program)
        names = {"Order": django_order() if library == "Django" else models.get(library)}
        exec(EVENT + program, names)
        result = names["pay"](*given, ORDER)
        if inspect.isawaitable(result):
            await result
        assert await is_paid_with_one_event(reader)


async def test_plain_sql_commits_change_and_event(database: Database, reader: asyncpg.Connection) -> None:
    await run_psql(database.dsn, "-c", SQL)
    assert await is_paid_with_one_event(reader)


def test_every_library_has_its_program() -> None:
    assert len(PROGRAMS) == 8
