"""The pages that follow from the code are current, and the code says enough to write them."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sea_mq_worker.doctor.findings import Finding
from sea_mq_worker.settings import Settings
from tools.docs.cli import PRINTED, commands
from tools.docs.markdown import sections
from tools.docs.pages import DOCTOR, PAGES, ROOT, stale
from tools.docs.tables import findings


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_generated_page_is_current(path: Path) -> None:
    assert not stale({path: PAGES[path]}), "run python -m tools.docs"


def test_a_page_is_stale_until_its_part_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- names -->\nold\n<!-- end of names -->\nafter\n")
    pages = {page: sections(names=lambda: "new\n")}
    page.write_text(stale(pages)[page])
    assert page.read_text() == "before\n<!-- names -->\nnew\n<!-- end of names -->\nafter\n"
    assert stale(pages) == {}


def test_every_command_that_prints_json_has_a_schema() -> None:
    printing = {
        name
        for name, command in commands().items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert printing == set(PRINTED)


def test_the_page_of_doctor_lists_the_keys_of_a_finding() -> None:
    above = DOCTOR.read_text().partition("<!-- findings -->")[0]
    assert re.findall(r"^- `(\w+)`", above, re.MULTILINE) == [field.name for field in fields(Finding)]


def test_no_two_findings_have_one_name() -> None:
    assert len({kind.slug for kind in findings()}) == len(findings()) > 40


def test_every_setting_has_a_meaning() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_architecture_names_each_room_and_its_files() -> None:
    rooms: dict[str, set[str]] = {}
    for path in [*(ROOT / "sea_mq_worker").glob("*.py"), *(ROOT / "sea_mq_worker").glob("*/*.py")]:
        if path.parent.name != "pipeline":
            rooms.setdefault(path.parent.name, set()).update({path.stem} - {"__init__", "__main__"})
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)/` \| (.*?) \|", page, re.MULTILINE)
    assert {room: set(re.findall(r"`(\w+)`", files)) for room, files in rows} == rooms
