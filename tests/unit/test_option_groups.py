"""Commands that take dataclasses of options."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from sea_mq_worker.cli.option_groups import with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    rows: Annotated[int, typer.Option("--rows", min=1)] = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    names: Annotated[list[str] | None, typer.Argument()] = None
    reason: Annotated[str, typer.Option("--reason")]
    limits: Limits


app = typer.Typer()


@app.command()
@with_options
def show(*, request: Request, json: bool = False) -> None:
    typer.echo(repr((request, json)))


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments).output


def test_the_fields_of_nested_dataclasses_are_options_with_their_defaults() -> None:
    asked = Request(names=["a", "b"], reason="why", limits=Limits(rows=7))
    assert run("a", "b", "--reason", "why", "--rows", "7", "--json") == f"{(asked, True)!r}\n"
    assert run("--reason", "why") == f"{(Request(reason='why', limits=Limits()), False)!r}\n"


def test_a_field_without_a_default_is_required_and_a_value_is_checked_as_its_option_wants() -> None:
    assert "Missing option '--reason'" in run()
    assert "greater than or equal to 1" in run("--reason", "why", "--rows", "0")
