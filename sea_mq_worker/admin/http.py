"""The admin server's HTTP: a small request, the response to it, and the token that says who may ask."""

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

# --- Responses, with headers that restrict browsers; the one place that writes JSON.

_HEADERS = (
    "cache-control: no-store",
    "x-content-type-options: nosniff",
    "referrer-policy: no-referrer",
    "cross-origin-resource-policy: same-origin",
    "connection: close",
)


@dataclass(frozen=True, slots=True)
class Response:
    """One response; ``headers`` are added to those of every response."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[str, ...] = ()

    def to_bytes(self, *, head_only: bool = False) -> bytes:
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"content-type: {self.content_type}",
            f"content-length: {len(self.body)}",
            *_HEADERS,
            *self.headers,
        )
        return "\r\n".join((*lines, "", "")).encode() + (b"" if head_only else self.body)


def json_response(data: object, status: HTTPStatus = HTTPStatus.OK, *headers: str) -> Response:
    """Return a JSON response; dataclasses become objects, times and ids become strings."""
    return Response(json.dumps(data, default=_plain).encode(), "application/json", status, headers)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if isoformat else str(value)


class RefusedError(Exception):
    """A request that gets an error instead; ``response`` has the text for the page, if there is one."""

    def __init__(self, status: HTTPStatus, text: str = "", *headers: str) -> None:
        super().__init__(text or status.phrase)
        if text:
            self.response = json_response({"error": text}, status, *headers)
        else:
            self.response = Response(f"{status.phrase}\n".encode(), status=status, headers=headers)


# --- Requests: a head, and for a POST to the API a small JSON body of a known length.

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


async def read_request(reader: asyncio.StreamReader, *, peer: str) -> Request:
    """Read one request within five seconds.

    Raises:
        RefusedError: it is none, too large or too slow.
        asyncio.IncompleteReadError: the client is gone.
    """
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            words = first.split(" ")
            if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004
                raise RefusedError(HTTPStatus.BAD_REQUEST)
            method, (path, _, query) = words[0], words[1].partition("?")
            parted = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in parted}
            body = await _read_body(reader, headers) if method == "POST" and path.startswith("/api/") else {}
    except asyncio.LimitOverrunError:
        raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    except TimeoutError:
        raise RefusedError(HTTPStatus.REQUEST_TIMEOUT) from None
    query_of = dict(parse_qsl(query))
    return Request(method=method, path=path, query=query_of, headers=headers, body=body, peer=peer)


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> Mapping[str, Any]:
    """Read a JSON object; a form of another page cannot send its content type."""
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, as content-type: application/json")
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "send the body with its content-length")
    if len(length) > len(str(_BODY_BYTES_MAX)) or int(length) > _BODY_BYTES_MAX:
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {_BODY_BYTES_MAX} bytes")
    try:
        body = json.loads(await reader.readexactly(int(length)))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "send one JSON object")
    return body


# --- Authorization by a bearer token, compared in constant time.

_WRONG_MAX = 10
_WINDOW_SECONDS = 60.0
_PEERS_MAX = 64
_TOKEN_SETTING = "SEA_MQ_ADMIN_TOKEN_FILE"  # noqa: S105  (a name)
_API_OFF = f"set {_TOKEN_SETTING} and restart the worker: without a token the page shows only numbers"
_OTHER_NAME = f"without {_TOKEN_SETTING} the worker answers only to localhost and addresses"
_NO_TOKEN_NOW = f"the worker cannot read the file of {_TOKEN_SETTING}"


class TokenAuth:
    """Authorizes requests by the token; without a token everybody may read numbers.

    A correct token always passes: many clients may share one address, as behind a proxy or on loopback, and
    wrong tokens of one client must not lock out the others. Wrong tokens are counted by address, and too
    many in a minute get 429.

    Args:
        token: returns the token; empty: everybody may read numbers, and the operator API is off. If the token
            is unavailable, nobody has access.
        clock: monotonic seconds.
    """

    def __init__(self, token: Callable[[], str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._clock = token, clock
        self._wrong: dict[str, tuple[int, float]] = {}

    def check_numbers(self, request: Request) -> None:
        """Require that the sender may read numbers.

        Raises:
            RefusedError: it may not.
        """
        self._check(request, refusal_without_token="" if request.names_this_machine else _OTHER_NAME)

    def check_operator(self, request: Request) -> None:
        """Require that the sender may use the operator API.

        Raises:
            RefusedError: it may not.
        """
        if request.is_from_another_origin:
            raise RefusedError(HTTPStatus.FORBIDDEN, "the request comes from a page of another origin")
        self._check(request, refusal_without_token=_API_OFF)

    def _check(self, request: Request, *, refusal_without_token: str) -> None:
        try:
            token = self._token()
        except UnavailableError:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, _NO_TOKEN_NOW) from None
        if not token:
            if refusal_without_token:
                raise RefusedError(HTTPStatus.FORBIDDEN, refusal_without_token)
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode()):
            return
        wrong = self._count_wrong(request.peer) if scheme else 0  # who gives no token guesses none
        if wrong <= _WRONG_MAX:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "", "www-authenticate: Bearer")
        since = self._wrong[request.peer][1]
        wait = max(1, round(_WINDOW_SECONDS - (self._clock() - since)))
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "too many wrong tokens", f"retry-after: {wait}")

    def _count_wrong(self, peer: str) -> int:
        """Return the number of wrong tokens of an address in this minute; know the latest addresses."""
        wrong, since = self._wrong.pop(peer, (0, self._clock()))
        if self._clock() - since >= _WINDOW_SECONDS:
            wrong, since = 0, self._clock()
        while len(self._wrong) >= _PEERS_MAX:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[peer] = (wrong + 1, since)
        return wrong + 1
