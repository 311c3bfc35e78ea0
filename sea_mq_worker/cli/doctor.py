"""``doctor``: find what is wrong before it hurts."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption, act, print_json, say

if TYPE_CHECKING:
    from sea_mq_worker.bootstrap.doctor import Finding
    from sea_mq_worker.settings import Settings


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings, too.")] = False,
    json: JsonOption = False,
) -> None:
    """Check database, streams, consumers, handler and how they fit together; exit 1 on errors."""

    async def work(settings: "Settings") -> None:
        from sea_mq_worker.bootstrap.doctor import Severity, examine

        findings = await examine(settings)
        if json:
            print_json([asdict(finding) for finding in findings])
        for finding in () if json else findings:
            say(_text(finding))
        if not (json or findings):
            typer.echo("nothing found")
        failing = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
        if any(finding.severity in failing for finding in findings):
            raise typer.Exit(EXIT_FAILED)

    act(work, needs=("database_url", "nats_url"))


def _text(finding: "Finding") -> str:
    lines = [
        f"{finding.severity} {finding.slug}: {finding.where}: {finding.what}",
        f"   {finding.why}",
        f"-> {finding.mend}",
        *(f"   {line}" for text in (finding.command, finding.sql) if text for line in text.splitlines()),
    ]
    return "\n".join(lines)
