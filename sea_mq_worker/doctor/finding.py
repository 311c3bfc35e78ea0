"""Findings of doctor, and the result of one run."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


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
