"""The documentation as a site: each link leads somewhere, and the search knows every page."""

import json
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_the_site_is_built_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    assert any("sixty seconds" in page["title"].lower() for page in found)
    pages = {page["location"].partition("#")[0] for page in found}
    assert pages == {"", *(f"{document.stem}/" for document in (_ROOT / "docs").glob("*.md"))}
