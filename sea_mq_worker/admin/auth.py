"""Who may see and do what: a bearer token, compared in constant time."""

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from sea_mq_worker.admin.requests import Request
from sea_mq_worker.admin.responses import AdminResponse, refusal

_WRONG_MAX = 10
_WINDOW_SECONDS = 60.0
_PEERS_MAX = 64

UNAUTHORIZED = AdminResponse(HTTPStatus.UNAUTHORIZED, headers=("www-authenticate: Bearer",))
_CLOSED = "set SEA_MQ_ADMIN_TOKEN_FILE and restart the worker: without a token it only shows numbers"


@dataclass(slots=True)
class TokenAuth:
    """Judges requests by the token; an empty one means that there is none, so that numbers are for everybody.

    The token decides before anything is counted: many clients may share one address, as behind a proxy or on
    loopback, and wrong tokens of one must not keep the others out. Wrong ones are counted by address, and
    too many in a minute are answered 429.
    """

    token: str = field(repr=False)
    clock: Callable[[], float] = time.monotonic
    _wrong: dict[str, tuple[int, float]] = field(default_factory=dict)

    def to_numbers(self, request: Request) -> AdminResponse | None:
        """Return why numbers are not for whoever asks; None: they are."""
        return self._judged(request) if self.token else None

    def to_desk(self, request: Request) -> AdminResponse | None:
        """Return why single events, and changes, are not for whoever asks; None: they are."""
        if not self.token:
            return refusal(HTTPStatus.FORBIDDEN, _CLOSED)
        if request.is_from_another_origin:
            return refusal(HTTPStatus.FORBIDDEN, "this comes from a page of another origin")
        return self._judged(request)

    def _judged(self, request: Request) -> AdminResponse | None:
        given = request.headers.get("authorization", "")
        if not given:
            return UNAUTHORIZED
        if self._is_token(given):
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

    def _is_token(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode())
