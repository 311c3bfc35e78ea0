"""The table of the page's API, and the schema of what each of its routes returns."""

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, get_args, get_type_hints

from sea_mq_worker.admin.api import ROUTES
from sea_mq_worker.admin.records import Status
from sea_mq_worker.admin.status import HistoryData
from tools.docs.cli import schema_of
from tools.docs.markdown import table


def responses() -> Mapping[str, Any]:
    """Return the type of each response with status 200, by method and path."""
    api = {f"{method} {path}": _found(call) for method, path, call, _ in ROUTES}
    return {"GET /status": Status, "GET /history": HistoryData, **api}


def _found(route: object) -> object:
    """Return the type that a route returns; None is a response 404."""
    returned = get_type_hints(route)["return"]
    return get_args(returned)[0] if isinstance(returned, UnionType) else returned


def table_of_routes() -> str:
    """Return a row for each route: the first line about the call that it makes."""
    return table(
        ("route", "effect"), ((f"`{method} {path}`", _effect(call)) for method, path, call, _ in ROUTES)
    )


def _effect(call: Callable[..., object]) -> str:
    return (call.__doc__ or "").split("\n")[0].replace("``", "`")


def schema() -> str:
    """Return the JSON schema of every response with status 200."""
    return schema_of("Responses of the worker's page and its API, by method and path", responses())
