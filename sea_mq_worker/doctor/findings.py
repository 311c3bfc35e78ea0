"""Findings of doctor and their kinds, and the result of one run.

``database_catalog`` and ``broker_catalog`` have the texts of their kinds. ``worker``, ``handler`` and
``security`` have theirs beside their checks.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

APPLY = "python -m sea_mq_worker streams apply"
REFUSES = "the worker refuses to start"


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


KindTexts: TypeAlias = tuple[Severity, str, str, str]


def error(condition: str, why: str, fix: str) -> KindTexts:
    return Severity.ERROR, condition, why, fix


def warning(condition: str, why: str, fix: str) -> KindTexts:
    return Severity.WARNING, condition, why, fix


def note(condition: str, why: str, fix: str) -> KindTexts:
    return Severity.INFO, condition, why, fix


class Kind(enum.Enum):
    """A kind of finding: its severity, condition, consequence and fix."""

    def __init__(self, severity: Severity, condition: str, why: str, fix: str) -> None:
        self.severity = severity
        self.condition = condition
        self.why = why
        self.fix = fix

    @property
    def slug(self) -> str:
        """The stable name for programs."""
        return self.name.lower()

    def finding(self, where: str, what: str, *, command: str = "", sql: str = "") -> Finding:
        """Return a finding of this kind: where it is, and the observed state."""
        return Finding(
            slug=self.slug,
            severity=self.severity,
            where=where,
            what=what,
            why=self.why,
            fix=self.fix,
            command=command,
            sql=f"{sql};" if sql else "",
        )


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
