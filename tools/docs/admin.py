"""The table of the page's API."""

from sea_mq_worker.admin.api import ROUTES
from tools.docs.markdown import table


def table_of_routes() -> str:
    """Return a row for each route: the first line about the call that it makes."""
    rows = ((f"`{method} {path}`", (call.__doc__ or "").split("\n")[0]) for method, path, call in ROUTES)
    return table(("route", "effect"), ((route, effect) for route, effect in rows))
