"""Authorization by a bearer token, compared in constant time."""

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from sea_mq_worker.admin.requests import Request
from sea_mq_worker.admin.responses import AdminResponse, refusal
from sea_mq_worker.domain.errors import UnavailableError

_WRONG_MAX = 10
_WINDOW_SECONDS = 60.0
_PEERS_MAX = 64

UNAUTHORIZED = AdminResponse(HTTPStatus.UNAUTHORIZED, headers=("www-authenticate: Bearer",))
_OPERATOR_API_OFF = refusal(
    HTTPStatus.FORBIDDEN,
    "set SEA_MQ_ADMIN_TOKEN_FILE and restart the worker: without a token the page shows only numbers",
)
_OTHER_NAME = refusal(
    HTTPStatus.FORBIDDEN, "without SEA_MQ_ADMIN_TOKEN_FILE the worker answers only to localhost and addresses"
)
_NO_TOKEN_NOW = refusal(
    HTTPStatus.SERVICE_UNAVAILABLE, "the worker cannot read the file of SEA_MQ_ADMIN_TOKEN_FILE"
)


@dataclass(slots=True)
class TokenAuth:
    """Authorizes requests by the token; without a token everybody may read numbers.

    A correct token always passes: many clients may share one address, as behind a proxy or on loopback, and
    wrong tokens of one client must not lock out the others. Wrong tokens are counted by address, and too
    many in a minute get 429.

    Attributes:
        token: returns the token; empty: everybody may read numbers, and the operator API is off. If the token
            is unavailable, nobody has access.
    """

    token: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    _wrong: dict[str, tuple[int, float]] = field(default_factory=dict)

    def refuse_numbers(self, request: Request) -> AdminResponse | None:
        """Return the refusal of a request for numbers; None: it is allowed."""
        return self._check_token(request, without_token=None if request.names_this_machine else _OTHER_NAME)

    def refuse_operator(self, request: Request) -> AdminResponse | None:
        """Return the refusal of a request for the operator API; None: it is allowed."""
        if request.is_from_another_origin:
            return refusal(HTTPStatus.FORBIDDEN, "the request comes from a page of another origin")
        return self._check_token(request, without_token=_OPERATOR_API_OFF)

    def _check_token(self, request: Request, *, without_token: AdminResponse | None) -> AdminResponse | None:
        try:
            token = self.token()
        except UnavailableError:
            return _NO_TOKEN_NOW
        if not token:
            return without_token
        given = request.headers.get("authorization", "")
        if not given:
            return UNAUTHORIZED
        if _is_bearer(given, token):
            return None
        wrong, since = self._wrong.pop(request.peer, (0, self.clock()))
        if self.clock() - since >= _WINDOW_SECONDS:
            wrong, since = 0, self.clock()
        while len(self._wrong) >= _PEERS_MAX:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[request.peer] = (wrong + 1, since)
        if wrong < _WRONG_MAX:
            return UNAUTHORIZED
        wait = max(1, round(_WINDOW_SECONDS - (self.clock() - since)))
        return refusal(HTTPStatus.TOO_MANY_REQUESTS, "too many wrong tokens", f"retry-after: {wait}")


def _is_bearer(authorization: str, token: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
