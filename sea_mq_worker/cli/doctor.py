"""``doctor``: find what is wrong before it hurts."""

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption, echo_safe, print_json, run_command

if TYPE_CHECKING:
    from sea_mq_worker.doctor.findings import Examination, Finding


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings, too.")] = False,
    json: JsonOption = False,
) -> None:
    """Check database, streams, consumers, handler and how they fit together; exit 1 on errors."""
    from sea_mq_worker.doctor import examine

    checkup = run_command(examine, needs=("database_url", "nats_url"))
    if json:
        print_json([asdict(finding) for finding in checkup.findings])
    else:
        echo_safe(*(line for finding in checkup.findings for line in _lines(finding)), *summary(checkup))
    failing = {"error", "warning"} if strict else {"error"}
    if any(finding.severity in failing for finding in checkup.findings):
        raise typer.Exit(EXIT_FAILED)


def _lines(finding: "Finding") -> list[str]:
    return [
        f"{finding.severity} {finding.slug}: {finding.where}: {finding.what}",
        f"   {finding.why}",
        f"-> {finding.fix}",
        *(f"   {line}" for text in (finding.command, finding.sql) for line in text.splitlines()),
        "",
    ]


def summary(checkup: "Examination") -> list[str]:
    """Summarize the findings, and name the parts that doctor checked and could not check."""
    counts = Counter(str(finding.severity) for finding in checkup.findings)
    wrong = [f"{n} {word}{'s' * (n > 1)}" for word in ("error", "warning") if (n := counts[word])]
    known = [f"{counts['info']} info"] if counts["info"] else []
    lines = [", ".join([*(wrong or ["no problem found"]), *known])]
    lines.append(f"checked: {', '.join(checkup.checked)}")
    if checkup.not_checked:
        advice = "; fix the errors above and run doctor again" if counts["error"] else ""
        lines.append(f"not checked: {', '.join(checkup.not_checked)}{advice}")
    return lines
