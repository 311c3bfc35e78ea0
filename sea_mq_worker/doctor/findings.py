"""A finding of doctor, and the result of one run.

Each finding is made where its condition is checked, with its consequence and its remedy. The reference of
findings is read from those calls, so slug, ``why`` and ``fix`` are literals, and a slug has one call.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

APPLY = "python -m sea_mq_worker streams apply"


class Severity(enum.StrEnum):
    """``error``: something stops or is lost now; ``warning``: it will or may be; ``info``: a note."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
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
    severity: Severity = field(kw_only=True)
    where: str
    what: str
    why: str = field(kw_only=True)
    fix: str = field(kw_only=True)
    command: str = field(kw_only=True, default="")
    sql: str = field(kw_only=True, default="")


error = partial(Finding, severity=Severity.ERROR)
warning = partial(Finding, severity=Severity.WARNING)
info = partial(Finding, severity=Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Findings, the worst first, and the parts that doctor checked and could not check.

    A part that could not be checked may have further problems.
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
