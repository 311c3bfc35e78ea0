"""The commands of docs/how-to/pipeline.md, on a machine without Java, and what they print as JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from sea_mq_worker.cli.pipeline import outputs
from tests.support.documents import ROOT, commands
from tests.support.processes import programs_without

ONE_SESSION = ROOT / "tests" / "support" / "one_session.py"
DOCUMENT = "docs/how-to/pipeline.md"
NOT_IN_THE_DOCUMENT = (
    "pipeline replay --lake lake --state PUBLISHED --reason test --dry-run",
    "pipeline erase --lake lake --key nobody --reason test --dry-run",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_commands_of_the_document_run_on_the_traffic_of_dev(tmp_path: Path) -> None:
    install_and_show, *others = (command.text for command in commands(DOCUMENT, "Try it"))
    first = install_and_show.partition(" -- ")[2]

    printed = printed_in_one_session(300, [first], [*others, *NOT_IN_THE_DOCUMENT], tmp_path)

    assert len(others) == 4
    assert "<title>" in (tmp_path / "report.html").read_text()
    assert {each["rows"] for each in printed["pipeline land"]["streams"]} == {300}
    assert verdicts(printed) == [{"delivered": 300}, {"delivered": 294, "dead": 6}]


def verdicts(printed: dict[str, Any]) -> list[dict[str, int]]:
    return [hop["verdicts"] for hop in printed["pipeline reconcile"]["hops"]]


def printed_in_one_session(
    events: int, as_shown: Sequence[str], with_json: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Run commands on the traffic of dev; return the documents that those with ``--json`` print, by name."""
    shared = [f"{command} --json" for command in with_json]
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "sea_mq_worker", "dev", "--events", str(events)),
            *("--folder", folder / "dev", "--", "python", ONE_SESSION, *as_shown, *shared),
        ],
        env={
            **os.environ,
            "PATH": programs_without("java", folder / "programs"), "JAVA_HOME": "",
            "PYTHONPATH": str(ROOT),
        },
        cwd=folder, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    printed = dict(zip(map(name_of, with_json), documents(ran.stdout), strict=True))
    assert printed.keys() == outputs().keys()
    for name, document in printed.items():
        as_described: TypeAdapter[Any] = TypeAdapter(outputs()[name])
        assert as_described.dump_python(as_described.validate_python(document), mode="json") == document
    return printed


def name_of(command: str) -> str:
    """Return the two words that name a command."""
    return " ".join(command.removeprefix("python -m sea_mq_worker ").split()[:2])


def documents(text: str) -> Iterator[Any]:
    while (at := text.find("{\n")) >= 0:
        document, end = json.JSONDecoder().raw_decode(text[at:])
        yield document
        text = text[at + end :]
