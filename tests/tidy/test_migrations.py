"""Migrations are frozen: each database that has one has it from a file with the same SHA-256."""

import re

from sea_mq_worker.postgres.migrations import migrations
from sea_mq_worker.resources import resource_folder
from tests.releases import DUMPS

RECORDED = re.compile(r"sea_mq_migrations[^;]*?VALUES \((\d+), '(\w+)', '([0-9a-f]{64})'")


def test_the_file_for_psql_has_the_sha_256_of_each_migration() -> None:
    recorded = RECORDED.findall((resource_folder("sql") / "schema.sql").read_text())
    assert recorded == [(str(one.version), one.name, one.sha256) for one in migrations()]


def test_a_migration_of_a_release_stays_as_it_is() -> None:
    assert DUMPS
    known = {(str(one.version), one.name, one.sha256) for one in migrations()}
    for dump in DUMPS:
        recorded = set(RECORDED.findall(dump.read_text()))
        assert recorded
        assert recorded <= known
