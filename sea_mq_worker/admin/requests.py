"""Requests to the admin server: a head, and for POST a small JSON body of a known length."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from sea_mq_worker.admin.responses import AdminResponse, refusal

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
