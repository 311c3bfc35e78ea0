"""The ways to provoke findings, by their names."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from sea_mq_worker.doctor.findings import Finding
from tests.support.checkups import Mend, Patient

LONG_AGO = datetime.now(UTC) - timedelta(days=40)
UNUSED = "127.0.0.1:1"

VARIANT = "__"
"""Behind a slug: one of several ways to provoke the same."""

Provoke = Callable[[Patient], Awaitable[Mend | None]]
"""Makes something wrong. What it returns mends it; None: the statements do that the finding prints."""

CASES: dict[str, Provoke] = {}
"""What leaves the tables as they are."""
CASES_OF_TABLES: dict[str, Provoke] = {}
"""What needs tables of its own."""


def mended_by(mend: Callable[[], Awaitable[object]]) -> Mend:
    """Return what mends by a call that needs nothing of the finding."""

    async def fix(_finding: Finding) -> None:
        await mend()

    return fix


def provokes(provoke: Provoke) -> Provoke:
    """Enter a case; its name is the slug of what doctor has to find."""
    CASES[provoke.__name__] = provoke
    return provoke


def provokes_in_tables(provoke: Provoke) -> Provoke:
    """Enter a case that changes the database."""
    CASES_OF_TABLES[provoke.__name__] = provoke
    return provoke


def by_sql(slug: str, statement: str) -> None:
    async def provoke(p: Patient) -> None:
        await p.sql(statement.format(database=p.database.name))

    CASES_OF_TABLES[slug] = provoke


def by_definition(slug: str, file: str, **fields: object) -> None:
    async def provoke(p: Patient) -> Mend:
        return await p.define(file, **fields)

    CASES[slug] = provoke


def by_setting(slug: str, **given: object) -> None:
    async def provoke(p: Patient) -> Mend:
        right = {key: p.given.get(key, "") for key in given}
        p.given.update(given)
        return p.changing(**right)

    CASES[slug] = provoke
