"""The workflows of a hosted forge run the project's own commands, and actions that cannot change."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.documents import ROOT

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
