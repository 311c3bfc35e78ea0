"""``doctor``: find what is wrong before it hurts."""

from dataclasses import asdict

import typer

from sea_mq_worker.cli.support import EXIT_FAILED, JsonOption, act, print_json, say
from sea_mq_worker.settings import Settings


def doctor(json: JsonOption = False) -> None:
    """Check database, streams, consumers, handler and how their times fit; exit 1 on findings."""

    async def work(settings: Settings) -> None:
        from sea_mq_worker.bootstrap.doctor import examine

        findings = await examine(settings)
        if json:
            print_json([asdict(finding) for finding in findings])
        for finding in () if json else findings:
            say(f"{finding.where}: {finding.why}\n  -> {finding.mend}")
        if not (json or findings):
            typer.echo("nothing found")
        if findings:
            raise typer.Exit(EXIT_FAILED)

    act(work, needs=("database_url", "nats_url"))
