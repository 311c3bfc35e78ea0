"""Documents name no file, setting or extra that is not there."""

import re
import tomllib

from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings
from tests.support.documents import ROOT, documents, files, inline

PACKAGE = ROOT / "sea_mq_worker"
FOLDERS = frozenset(path.name for base in (ROOT, PACKAGE) for path in base.glob("[a-z]*/"))
FILE = re.compile(r"[\w@.-]+\.(?:py|sql|toml|lock|yaml|yml|conf|svg|md|json)")
MADE = frozenset(
    {"benchmarks.json", "benchmarks-peers.json", "benchmarks-pipeline.json", "STREAM.durable.json"}
)
"""Written by a command, or a pattern of names."""


def paths(document: str) -> set[str]:
    """Find what looks like a path: a folder of ours with something below it, or the name of a file alone."""
    return {
        code.rstrip("/")
        for code in inline(document)
        if (re.fullmatch(r"[\w@./-]+", code) and "/" in code and code.split("/")[0] in FOLDERS)
        or FILE.fullmatch(code)
    }


def test_every_file_that_is_named_exists() -> None:
    present = {file.rpartition("/")[2] for file in files()} | MADE
    assert [
        (document, path)
        for document in documents()
        for path in paths(document) - present
        if not any((base / path).exists() for base in (ROOT, PACKAGE, (ROOT / document).parent))
    ] == []


def test_every_setting_that_is_named_exists() -> None:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields} | {CONFIG_VARIABLE}
    named = re.compile(rf"\b{ENV_PREFIX}\w*[A-Z]\b")
    found = {(name, word) for name in documents() for word in named.findall((ROOT / name).read_text())}
    assert {(name, word) for name, word in found if word not in known} == set()


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "".join((ROOT / document).read_text() for document in documents())
    named = ",".join(re.findall(r"pip install '\.\[(.+?)\]'", text)).split(",")
    assert set(named) <= project["optional-dependencies"].keys()
