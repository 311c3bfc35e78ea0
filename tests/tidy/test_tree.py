"""The tree: sizes, frozen migrations, mutants that apply, workflows of known commands, known settings."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from sea_mq_worker.postgres.migrations import migrations
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, FIXED, Settings
from tests.mutation.mutants import load, problems
from tests.releases import DUMPS
from tests.support.documents import ROOT, documents
from tools.size import Module, measure, names_per_100_lines, parts

MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
TEST_FUNCTION_LINES_MAX = 80

# Lower a ratchet whenever the worker's figure is below it (`python -m tools.size`); never raise it.
NAMES_PER_100_LINES_MAX = 14.5
"""Names that the worker imports for each 100 lines of its code."""
SMALL_FILES_MAX = 9
"""Files of the worker with fewer than 80 lines."""


@cache
def modules() -> dict[str, Module]:
    """Return every module of the checkout by its path."""
    examples = [measure(path) for path in (ROOT / "examples").rglob("*.py")]
    counted = [module for part in parts().values() for module in part] + examples
    return {str(module.path.relative_to(ROOT)): module for module in counted}


def test_no_module_is_too_long_to_be_one_story() -> None:
    assert {name: m.lines for name, m in modules().items() if m.lines > MODULE_LINES_MAX} == {}


def test_no_function_is_longer_than_a_page() -> None:
    def bound(name: str) -> int:
        return TEST_FUNCTION_LINES_MAX if name.startswith("tests/") else FUNCTION_LINES_MAX

    assert {
        f"{name}: {function}": lines
        for name, module in modules().items()
        for function, lines in module.functions.items()
        if lines > bound(name)
    } == {}


def test_the_worker_imports_no_more_names_for_its_code() -> None:
    assert names_per_100_lines(parts()["worker"]) <= NAMES_PER_100_LINES_MAX


def test_the_worker_has_no_more_small_files() -> None:
    small = [str(m.path.relative_to(ROOT)) for m in parts()["worker"] if m.small]
    assert len(small) <= SMALL_FILES_MAX, small


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


def test_every_mutant_applies_to_the_code_and_names_a_test() -> None:
    assert problems(load()) == []


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_pins_each_action_by_its_commit(path: Any) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


def test_each_nightly_command_is_one_that_contributors_run() -> None:
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    commands = nightly["jobs"]["long"]["strategy"]["matrix"]["command"]
    known = (ROOT / "CONTRIBUTING.md").read_text()
    assert commands
    assert [command for command in commands if f"`.venv/bin/{command}`" not in known] == []


def test_every_setting_that_is_named_exists() -> None:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in (*Settings.model_fields, *FIXED)} | {CONFIG_VARIABLE}
    named = re.compile(rf"\b{ENV_PREFIX}\w*[A-Z]\b")
    found = {(name, word) for name in documents() for word in named.findall((ROOT / name).read_text())}
    assert {(name, word) for name, word in found if word not in known} == set()
