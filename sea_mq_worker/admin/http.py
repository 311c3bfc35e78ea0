"""Authorization by a bearer token, compared in constant time."""

import asyncio
import hmac
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from sea_mq_worker.errors import UnavailableError

# --- Responses of the admin server, with headers that restrict browsers; the one place that writes JSON.

_HEADERS = (
    "cache-control: no-store",
    "x-content-type-options: nosniff",
    "referrer-policy: no-referrer",
    "cross-origin-resource-policy: same-origin",
    "connection: close",
)

_STATES = {"stop": "stopping", "start": "starting"}
"""State of a worker by its unready part; any other part means paused."""


@dataclass(frozen=True, slots=True)
class AdminResponse:
    """One response; ``headers`` are added to those of every response."""

    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[str, ...] = ()

    def to_bytes(self, *, head_only: bool = False) -> bytes:
        """Return the bytes of the response; an empty body becomes the phrase of the status."""
        body = self.body or f"{self.status.phrase}\n".encode()
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"content-type: {self.content_type}",
            f"content-length: {len(body)}",
            *_HEADERS,
            *self.headers,
        )
        return "\r\n".join((*lines, "", "")).encode() + (b"" if head_only else body)


def json_response(data: object, status: HTTPStatus = HTTPStatus.OK) -> AdminResponse:
    """Return a JSON response; dataclasses become objects, times and ids become strings."""
    return AdminResponse(status, json.dumps(data, default=_plain).encode(), "application/json")


def refusal(status: HTTPStatus, text: str, *headers: str) -> AdminResponse:
    """Return an error response with a text for the page."""
    answer = json_response({"error": text}, status)
    return AdminResponse(status, answer.body, answer.content_type, headers)


def health(reasons: Mapping[str, str], warnings: Mapping[str, str], *, authorized: bool) -> AdminResponse:
    """Answer a probe with the unready parts; for authorized clients with their reasons, and with warnings."""
    more = {"warnings": dict(warnings)} if warnings and authorized else {}
    if not reasons:
        return json_response({"ok": True, **more})
    state = next((name for part, name in _STATES.items() if part in reasons), "paused")
    answer = {"ok": False, "state": state, "parts": sorted(reasons), **more}
    if authorized:
        answer["reasons"] = dict(reasons)
    return json_response(answer, HTTPStatus.SERVICE_UNAVAILABLE)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if isoformat else str(value)


# --- Requests to the admin server: a head, and for POST a small JSON body of a known length.

HEAD_BYTES_MAX = 8192
_BODY_BYTES_MAX = 4096
_SECONDS_MAX = 5.0
_THIS_MACHINE = re.compile(r"(localhost|[0-9.]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    peer: str = ""

    @property
    def names_this_machine(self) -> bool:
        """Whether the client uses localhost or an address: a site can lead its own name to this machine."""
        return _THIS_MACHINE.fullmatch(self.headers.get("host", "localhost")) is not None

    @property
    def is_from_another_origin(self) -> bool:
        """Whether a browser marks the request as sent by a page of another origin."""
        origin = self.headers.get("origin")
        site = self.headers.get("sec-fetch-site", "same-origin")
        return site not in {"same-origin", "none"} or (
            origin is not None and origin.partition("://")[2] != self.headers.get("host")
        )


async def read_request(reader: asyncio.StreamReader, *, peer: str) -> Request | AdminResponse:
    """Read one request within five seconds, or return its refusal."""
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            return await _read(reader, peer)
    except asyncio.LimitOverrunError:
        return AdminResponse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    except TimeoutError:
        return AdminResponse(HTTPStatus.REQUEST_TIMEOUT)


async def _read(reader: asyncio.StreamReader, peer: str) -> Request | AdminResponse:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004
        return AdminResponse(HTTPStatus.BAD_REQUEST)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body: Mapping[str, Any] | AdminResponse = {}
    path, _, query = words[1].partition("?")
    if words[0] == "POST" and path.startswith("/api/"):
        body = await _read_body(reader, headers)
    if isinstance(body, AdminResponse):
        return body
    return Request(
        method=words[0], path=path, query=dict(parse_qsl(query)), headers=headers, body=body, peer=peer
    )


async def _read_body(
    reader: asyncio.StreamReader, headers: Mapping[str, str]
) -> Mapping[str, Any] | AdminResponse:
    """Read a JSON object; a form of another page cannot send its content type."""
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, as content-type: application/json")
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        return refusal(HTTPStatus.LENGTH_REQUIRED, "send the body with its content-length")
    if len(length) > len(str(_BODY_BYTES_MAX)) or int(length) > _BODY_BYTES_MAX:
        return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {_BODY_BYTES_MAX} bytes")
    try:
        body = json.loads(await reader.readexactly(int(length)))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return refusal(HTTPStatus.BAD_REQUEST, "send one JSON object")
    return body


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
