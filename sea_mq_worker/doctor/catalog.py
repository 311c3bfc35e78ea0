"""What a kind of finding is; each part of the system has its own."""

import enum

from sea_mq_worker.doctor.finding import Finding, Severity

APPLY = "python -m sea_mq_worker streams apply"
MIGRATE = "python -m sea_mq_worker migrate"
REFUSES = "the worker refuses to start"


class Kind(enum.Enum):
    """A kind of finding: severity, what is looked for, why it matters, what mends it."""

    def __init__(self, severity: Severity, sought: str, why: str, mend: str) -> None:
        self.severity = severity
        self.sought = sought
        self.why = why
        self.mend = mend

    @property
    def slug(self) -> str:
        """The name that programs know it by."""
        return self.name.lower()

    def found(self, where: str, what: str, *, command: str = "", sql: str = "") -> Finding:
        """Say that this was found, and where."""
        return Finding(
            slug=self.slug,
            severity=self.severity,
            where=where,
            what=what,
            why=self.why,
            mend=self.mend,
            command=command,
            sql=f"{sql};" if sql else "",
        )
