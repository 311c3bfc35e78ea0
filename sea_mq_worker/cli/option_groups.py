"""Lets a command take dataclasses whose fields are its options."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import wraps
from typing import Any


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a dataclass type by the fields of the dataclass, as typer needs them.

    With

        @dataclass(frozen=True, slots=True, kw_only=True)
        class Limits:
            rows: Annotated[int, typer.Option("--rows")] = 100
            seconds: Annotated[float, typer.Option("--seconds")] = 1.0

        @with_options
        def count(*, limits: Limits, json: JsonOption = False) -> None: ...

    ``count --rows 7`` calls ``count(limits=Limits(rows=7, seconds=1.0), json=False)``. A field may have a
    dataclass type, too.
    """
    options = list(_options(command))

    @wraps(command)
    def run(**given: Any) -> None:
        _call(command, given)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _options(taker: Callable[..., object]) -> Iterator[inspect.Parameter]:
    for parameter, made in _parameters(taker):
        if made:
            yield from _options(made)
        else:
            yield parameter


def _call(taker: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call ``taker`` with its part of ``given``; make the dataclasses among its parameters first."""
    parameters = _parameters(taker)
    return taker(**{one.name: _call(made, given) if made else given[one.name] for one, made in parameters})


def _parameters(taker: Callable[..., object]) -> Iterator[tuple[inspect.Parameter, type | None]]:
    """Yield the parameters, each with its type if that is a dataclass."""
    for parameter in inspect.signature(taker, eval_str=True).parameters.values():
        type_ = parameter.annotation
        yield parameter, type_ if isinstance(type_, type) and is_dataclass(type_) else None
