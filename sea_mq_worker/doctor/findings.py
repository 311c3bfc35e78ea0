"""A finding of doctor, and the result of one run.

Each finding is made where its condition is checked, with its consequence and its remedy; the reference of
findings is read from those calls, so slug, ``why`` and ``fix`` are literals, and a slug has one call.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

APPLY = "python -m sea_mq_worker streams apply"


class Severity(enum.StrEnum):
    """``error``: something fails or may be lost; ``warning``: trouble ahead; ``info``: a note."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem.

    Attributes:
        slug: kind of finding; stable across versions.
        where: the table, stream, consumer or server.
        what: the observed state.
        why: its consequence.
        fix: the remedy, in words.
        command: the command that fixes or shows it; may be empty.
        sql: the statements that fix it, for psql as the owner of the tables or of the server; may be empty.
    """

    slug: str
    severity: Severity
    where: str
    what: str
    why: str
    fix: str
    command: str = ""
    sql: str = ""


def error(
    slug: str, where: str, what: str, *, why: str, fix: str, command: str = "", sql: str = ""
) -> Finding:
    return _finding(Severity.ERROR, slug, where, what, why, fix, command, sql)


def warning(
    slug: str, where: str, what: str, *, why: str, fix: str, command: str = "", sql: str = ""
) -> Finding:
    return _finding(Severity.WARNING, slug, where, what, why, fix, command, sql)


def info(
    slug: str, where: str, what: str, *, why: str, fix: str, command: str = "", sql: str = ""
) -> Finding:
    return _finding(Severity.INFO, slug, where, what, why, fix, command, sql)


def _finding(severity: Severity, slug: str, *texts: str) -> Finding:
    where, what, why, fix, command, sql = texts
    return Finding(
        slug=slug, severity=severity, where=where, what=what, why=why, fix=fix, command=command,
        sql=f"{sql};" if sql else "",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Result of one run of doctor.

    Attributes:
        findings: the worst first.
        checked: the parts that doctor checked.
        not_checked: the parts that doctor could not check; they may have further problems.
    """

    findings: Sequence[Finding]
    checked: Sequence[str]
    not_checked: Sequence[str]


def format_duration(seconds: float) -> str:
    """Format a duration in the largest unit of which it has at least two."""
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
