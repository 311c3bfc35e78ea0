"""``doctor``: find what is wrong before it hurts."""

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption, echo_safe, print_json, run_command

if TYPE_CHECKING:
    from sea_mq_worker.doctor import Examination, Finding
    from sea_mq_worker.settings import Settings


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings, too.")] = False,
    json: JsonOption = False,
) -> None:
    """Check database, streams, consumers, handler and how they fit together; exit 1 on errors."""

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.doctor import Severity, examine

        checkup = await examine(settings)
        findings = checkup.findings
        if json:
            print_json([asdict(finding) for finding in findings])
        else:
            echo_safe("\n\n".join([*map(_text, findings), _sum(checkup)]))
        failing = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
        if any(finding.severity in failing for finding in findings):
            raise typer.Exit(EXIT_FAILED)

    run_command(work, needs=("database_url", "nats_url"))


def _text(finding: "Finding") -> str:
    lines = [
        f"{finding.severity} {finding.slug}: {finding.where}: {finding.what}",
        f"   {finding.why}",
        f"-> {finding.mend}",
        *(f"   {line}" for text in (finding.command, finding.sql) if text for line in text.splitlines()),
    ]
    return "\n".join(lines)


def _sum(checkup: "Examination") -> str:
    """Tell how it stands, and what that is worth: what could not be looked at may be wrong, too."""
    counts = Counter(str(finding.severity) for finding in checkup.findings)
    wrong = [f"{n} {word}{'s' * (n > 1)}" for word in ("error", "warning") if (n := counts[word])]
    known = [f"{counts['info']} to know of"] if counts["info"] else []
    lines = [", ".join([*(wrong or ["nothing is wrong"]), *known])]
    lines.append(f"looked at {', '.join(checkup.seen)}")
    if checkup.unseen:
        lines.append(f"not looked at: {', '.join(checkup.unseen)}; mend the above, then run doctor again")
    return "\n".join(lines)
