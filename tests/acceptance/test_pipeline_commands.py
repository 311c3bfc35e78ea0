"""The commands of docs/how-to/pipeline.md, on a machine without Java, and what they print as JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from sea_mq_worker.cli.pipeline.outputs import PIPELINE_OUTPUTS
from tests.support.documents import ROOT, commands
from tests.support.machines import programs_without

ONE_SESSION = ROOT / "tests" / "support" / "one_session.py"
EVENTS = 300
DOCUMENT = "docs/how-to/pipeline.md"
NOT_IN_THE_DOCUMENT = (
    "pipeline replay --lake lake --state PUBLISHED --reason test --dry-run",
    "pipeline drain --dry-run",
    "pipeline erase --lake lake --key nobody --reason test --dry-run",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("session", ["here", pytest.param("connect", marks=pytest.mark.long)])
def test_the_commands_of_the_document_run_on_the_traffic_of_dev(session: str, tmp_path: Path) -> None:
    """Those of the document as they are written, and all of them in one session, also of Spark Connect."""
    install_and_show, *others = (command.text for command in commands(DOCUMENT, "Try it"))
    first = install_and_show.partition(" -- ")[2]
    shared = [f"{command} --json" for command in (*others, *NOT_IN_THE_DOCUMENT)]

    ran = subprocess.run(
        [
            *(sys.executable, "-m", "sea_mq_worker", "dev", "--events", str(EVENTS)),
            *("--folder", tmp_path / "dev", "--", "python", ONE_SESSION, session, first, *shared),
        ],
        env={
            **os.environ,
            "PATH": programs_without("java", tmp_path / "programs"), "JAVA_HOME": "",
            "PYTHONPATH": str(ROOT),
        },
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert len(others) == 4
    assert "<title>" in (tmp_path / "report.html").read_text()
    printed = dict(zip(map(name_of, shared), documents(ran.stdout), strict=True))
    assert printed.keys() == PIPELINE_OUTPUTS.keys()
    for name, document in printed.items():
        as_described: TypeAdapter[Any] = TypeAdapter(PIPELINE_OUTPUTS[name])
        assert as_described.dump_python(as_described.validate_python(document), mode="json") == document
    assert {each["rows"] for each in printed["pipeline land"]["streams"]} == {EVENTS}
    verdicts = printed["pipeline reconcile"]
    assert [(hop["verdicts"].get("delivered"), hop["verdicts"].get("dead")) for hop in verdicts["hops"]] == [
        (EVENTS, None),
        (EVENTS - EVENTS // 50, EVENTS // 50),
    ]


def name_of(command: str) -> str:
    """Return the two words that name a command."""
    return " ".join(command.removeprefix("python -m sea_mq_worker ").split()[:2])


def documents(text: str) -> Iterator[Any]:
    """Find what was printed as JSON, in its order."""
    while (at := text.find("{\n")) >= 0:
        document, end = json.JSONDecoder().raw_decode(text[at:])
        yield document
        text = text[at + end :]
