"""What a finding says, and to whom it matters."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """``error``: something does not work or may be lost; ``warning``: it will hurt; ``info``: to be known."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong.

    Attributes:
        slug: which kind of finding it is; stays the same from version to version.
        where: the table, stream, consumer or server.
        what: what was found there.
        why: what follows from it.
        mend: what to do, in words.
        command: the command that does it, where one does.
        sql: the statements that do it, as psql takes them from whoever owns the tables or the server.
    """

    slug: str
    severity: Severity
    where: str
    what: str
    why: str
    mend: str
    command: str = ""
    sql: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What came of looking.

    Attributes:
        findings: the worst first.
        seen: what was looked at.
        unseen: what could not be: more may be wrong there.
    """

    findings: Sequence[Finding]
    seen: Sequence[str]
    unseen: Sequence[str]


def format_duration(seconds: float) -> str:
    """Word how long something has lasted, in the largest unit that it has twice."""
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
