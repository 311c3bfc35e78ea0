"""Routes of the admin server, and their authorization.

Probes carry no token, so /healthz and /readyz require none; without the token they name the unready parts and
not the reasons. The page itself holds no data and asks the user for the token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias

from sea_mq_worker.admin.api_routes import dispatch
from sea_mq_worker.admin.auth import TokenAuth
from sea_mq_worker.admin.operator_api import OperatorApi
from sea_mq_worker.admin.requests import Request
from sea_mq_worker.admin.responses import AdminResponse, health, json_response

Reasons: TypeAlias = Mapping[str, str]
"""Reason by the name of the unready part; empty: all parts are ready."""

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FOLDER = Path(__file__).with_name("page")
_SCRIPTS = ("action_form", "api", "charts", "operator_panel", "page", "rendering", "side_cards")
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in _SCRIPTS},
}
_POLICY = (
    "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Answers requests.

    Attributes:
        ready: why the worker is not ready, by part.
        warnings: troubles, by name, in spite of which the worker is ready.
        metrics: the exposition.
        status: the data of ``/status``.
        history: the data of ``/history``, the last hour.
        access: authorizes all but health.
        operator_api: queries and changes with the token; None: there are none.
    """

    ready: Callable[[], Reasons]
    metrics: Callable[[], bytes]
    status: Callable[[], object]
    history: Callable[[], object]
    access: TokenAuth
    operator_api: OperatorApi | None
    warnings: Callable[[], Reasons] = dict

    async def answer(self, request: Request) -> AdminResponse:
        """Answer at once; only a request to the operator API may take a while."""
        if request.path.startswith("/api/") and request.method in {"GET", "POST"}:
            return await self._operator(request)
        if request.method not in {"GET", "HEAD"}:
            return AdminResponse(HTTPStatus.METHOD_NOT_ALLOWED, headers=("allow: GET, HEAD",))
        if request.path in _FILES:
            return _file(*_FILES[request.path])
        return self._numbers(request)

    def _numbers(self, request: Request) -> AdminResponse:
        refused = self.access.refuse_numbers(request)
        match request.path:
            case "/healthz":
                return json_response({"ok": True})  # a stuck loop does not even answer
            case "/readyz":
                return health(self.ready(), self.warnings(), authorized=refused is None)
            case "/metrics":
                return refused or AdminResponse(HTTPStatus.OK, self.metrics(), _METRICS_TYPE)
            case "/status":
                return refused or json_response(self.status())
            case "/history":
                return refused or json_response(self.history())
            case _:
                return AdminResponse(HTTPStatus.NOT_FOUND)

    async def _operator(self, request: Request) -> AdminResponse:
        refused = self.access.refuse_operator(request)
        if refused is not None or self.operator_api is None:
            return refused or AdminResponse(HTTPStatus.NOT_FOUND)
        return await dispatch(self.operator_api, request)


def _file(name: str, content_type: str) -> AdminResponse:
    return AdminResponse(HTTPStatus.OK, (_FOLDER / name).read_bytes(), content_type, (_POLICY,))
