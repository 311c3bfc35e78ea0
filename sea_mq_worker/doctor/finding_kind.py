"""Base of the finding catalogs.

``database_catalog`` and ``broker_catalog`` have the texts of their parts. ``worker``, ``handler`` and
``security`` have theirs beside their checks.
"""

import enum

from sea_mq_worker.doctor.finding import Finding, Severity

APPLY = "python -m sea_mq_worker streams apply"
MIGRATE = "python -m sea_mq_worker migrate"
REFUSES = "the worker refuses to start"


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
