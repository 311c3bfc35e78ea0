"""Fixtures of all tests: one PostgreSQL and one nats-server a session, a database and names a test.

The servers are embedded ones unless `SEA_MQ_TEST_POSTGRES` or `SEA_MQ_TEST_NATS` give a URL, or
`--containers` asks for Docker. Under pytest-xdist each worker has its own embedded servers.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import pytest_asyncio
from xdist.scheduler import LoadScopeScheduling

from tests.support import servers
from tests.support.servers import Database, PostgresAddress

if TYPE_CHECKING:
    from tests.support.site import Site, SiteWith

_JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    # Spark's classes, ten thousand of them, would be verified at each start
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_PIPELINE = "tests/pipeline/test_"
_WITHOUT_SPARK = ("jetstream_columns", "jetstream_offsets", "jetstream_read", "report_page")
_GROUPS = {
    **{f"{_PIPELINE}{name}.py": "" for name in _WITHOUT_SPARK},
    "tests/acceptance/test_pipeline_commands.py": "java",
    f"{_PIPELINE}land": "land",
    _PIPELINE: "spark",
    "tests/soak/test_soak.py": "soak",
    "tests/acceptance/test_release.py": "release",
}
"""The group of tests that one process runs, by how their ids begin; empty: any process runs the test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--containers",
        action="store_true",
        help="test against postgres:18 and nats:2 in Docker instead of embedded servers",
    )


def pytest_configure() -> None:
    """Keep the developer's own settings out of the tests; let Java start quickly rather than run well.

    Hundreds of processes are started: what one of them has compiled of Python is there for the next.
    """
    # A shell's background job ignores it, and so would the programs under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.register_profile("loaded machine", deadline=None)
    hypothesis.settings.load_profile("loaded machine")
    os.environ.setdefault("JDK_JAVA_OPTIONS", _JAVA_OPTIONS)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for name in list(os.environ):
        if name.startswith("SEA_MQ_") and not name.startswith("SEA_MQ_TEST_"):
            del os.environ[name]


class _ByCost(LoadScopeScheduling):  # type: ignore[misc]
    """Give each test to a free process, but all tests of one group to the same process."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for begin, group in _GROUPS.items() if nodeid.startswith(begin)), "") or nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Share one Spark session, and run at most two JVMs and one soak at a time."""
    return _ByCost(config, log)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_server(pytestconfig: pytest.Config) -> AsyncIterator[PostgresAddress]:
    """The session's PostgreSQL, for a superuser."""
    async with servers.postgres(containers=pytestconfig.getoption("--containers")) as address:
        yield address


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def nats_url(pytestconfig: pytest.Config) -> AsyncIterator[str]:
    """The URL of the session's nats-server with JetStream, shared: use `names` to stay apart."""
    async with servers.nats(containers=pytestconfig.getoption("--containers")) as url:
        yield url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def template_database(postgres_server: PostgresAddress) -> AsyncIterator[Database]:
    """A migrated database to copy; nobody may stay connected to it."""
    from sea_mq_worker.postgres.migrations import migrate  # noqa: PLC0415 - only these tests need it

    async with servers.scratch_database(postgres_server, prefix="template_") as template:
        await migrate(template.dsn)
        yield template


@pytest_asyncio.fixture
async def database(postgres_server: PostgresAddress, template_database: Database) -> AsyncIterator[Database]:
    """A migrated, empty database of the test's own."""
    async with servers.scratch_database(
        postgres_server, prefix="test_", template=template_database.name
    ) as own:
        yield own


@pytest.fixture
def names() -> str:
    """A token of the test's own, to name its streams, subjects and consumers with."""
    return servers.unique("t")


@pytest.fixture
def site_with(database: Database, nats_url: str, names: str, tmp_path: Path) -> "SiteWith":
    """Set a site up with what differs from `shared`; see `site` for what that may be."""
    from tests.support.site import site  # noqa: PLC0415 - only these tests need it

    return partial(site, dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path)


@pytest.fixture
async def shared(site_with: "SiteWith") -> "AsyncIterator[Site]":
    """A site with the fast profile on the session's servers, which nobody may hurt."""
    async with site_with() as made:
        yield made
