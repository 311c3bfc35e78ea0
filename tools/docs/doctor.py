"""The table of all findings of `doctor`."""

from sea_mq_worker.doctor import KINDS
from tools.docs.markdown import table


def table_of_findings() -> str:
    """Return a row for each kind of finding, in the order of the code."""
    return table(
        ("slug", "severity", "condition", "why it matters", "fix"),
        ((f"`{kind.slug}`", kind.severity, kind.condition, kind.why, kind.fix) for kind in KINDS),
    )
