"""Findings about the handler: connection, certificate and path; doctor sends it no event."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from urllib.parse import SplitResult, urlsplit

from sea_mq_worker.connections.handler import handler_tls
from sea_mq_worker.doctor.finding import REFUSES, Finding, Kind, error, warning
from sea_mq_worker.domain.forbidden_hosts import is_metadata_host
from sea_mq_worker.settings import Settings

_SECONDS = 3.0
_WRONG = {0, 404, *range(300, 400), *range(500, 600)} - {501}
"""Statuses of a wrong path or broken handler; a server without OPTIONS answers 405 or 501.

401 and 403 are not wrong: doctor sends no token.
"""


class HandlerKind(Kind):
    """Findings from a connection and an OPTIONS request to the handler."""

    HANDLER_MISSING = error(
        "consumers are configured and no handler is",
        REFUSES,
        "set SEA_MQ_HANDLER_URL, or SEA_MQ_CONSUMERS= to receive nothing",
    )
    HANDLER_UNREACHABLE = error(
        "the handler accepts no connection",
        "receiving pauses",
        "start the handler, or correct SEA_MQ_HANDLER_URL or SEA_MQ_HANDLER_BATCH_URL",
    )
    HANDLER_UNTRUSTED = error(
        "the handler's certificate cannot be trusted",
        "receiving pauses",
        "check its certificate and host name, SEA_MQ_HANDLER_TLS_* and both clocks",
    )
    HANDLER_FORBIDDEN = error(
        "the handler's name resolves to a link-local address or a metadata service",
        "the worker sends nothing there",
        "correct the URL, or set SEA_MQ_HANDLER_ALLOW_LINK_LOCAL if intended",
    )
    HANDLER_SILENT = error(
        "the handler accepts connections, and does not answer OPTIONS",
        "calls wait until SEA_MQ_HANDLER_TIMEOUT_SECONDS, and have no effect",
        "find out why its process does not answer, such as a blocked event loop; then restart it",
    )
    HANDLER_PATH = warning(
        "the handler answers OPTIONS with a redirect, 404 or 5xx",
        "the worker retries messages and then dead-letters them",
        "correct path and scheme of SEA_MQ_HANDLER_URL or SEA_MQ_HANDLER_BATCH_URL, or fix the handler",
    )


async def handler_findings(s: Settings) -> AsyncIterator[Finding]:
    """Connect, and request the path of each URL by OPTIONS."""
    if not s.handler_url:
        yield HandlerKind.HANDLER_MISSING.finding("handler", "SEA_MQ_HANDLER_URL is not set")
    for name, text in (("handler", s.handler_url), ("batch handler", s.handler_batch_url)):
        if text and (finding := await _examine(name, urlsplit(text), s)):
            yield finding


async def _examine(name: str, url: SplitResult, s: Settings) -> Finding | None:
    where = f"{name} {url.hostname}:{_port(url)}"
    trust = (handler_tls(s) or ssl.create_default_context()) if url.scheme == "https" else None
    try:
        async with asyncio.timeout(_SECONDS):
            if not s.handler_allow_link_local and (address := await _forbidden(url)):
                return HandlerKind.HANDLER_FORBIDDEN.finding(where, f"it is at {address}")
            reader, writer = await asyncio.open_connection(url.hostname, _port(url), ssl=trust)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason
        return HandlerKind.HANDLER_UNTRUSTED.finding(where, f"it cannot be trusted ({reason})")
    except (OSError, UnicodeError) as error:
        what = getattr(error, "strerror", "") or str(error) or f"no answer within {_SECONDS:g} s"
        return HandlerKind.HANDLER_UNREACHABLE.finding(where, what)
    try:
        status = await _request_options(url, reader, writer)
    finally:
        writer.close()
    if status is None:
        return HandlerKind.HANDLER_SILENT.finding(where, f"no answer to OPTIONS within {_SECONDS:g} s")
    return HandlerKind.HANDLER_PATH.finding(where, f"{status} to OPTIONS") if status in _WRONG else None


async def _forbidden(url: SplitResult) -> str:
    """Return a forbidden address that the name resolves to, or an empty text."""
    found = await asyncio.get_running_loop().getaddrinfo(url.hostname, _port(url), type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    return next(filter(is_metadata_host, addresses), "")


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


async def _request_options(
    url: SplitResult, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> int | None:
    """Return the answer's status, 0 if it is not HTTP; None: nothing came."""
    target = SplitResult("", "", url.path or "/", url.query, "").geturl()
    host = url.netloc.rpartition("@")[2]
    writer.write(f"OPTIONS {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    line = b""
    with contextlib.suppress(OSError, ValueError):
        async with asyncio.timeout(_SECONDS):
            line = await reader.readline()
    status = line.split(b" ")[1:2]
    if status and status[0].isdigit():
        return int(status[0])
    return 0 if line else None
