"""Readiness of a running worker, read at the admin address of the settings."""

import asyncio
import contextlib
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sea_mq_worker.connections import handler_tls, in_plain_text, read_secret, readable_by_all, secret_files
from sea_mq_worker.doctor.findings import REFUSES, Finding, Kind, error, note, warning
from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.runtime.addresses import is_metadata_host
from sea_mq_worker.settings import Settings, SettingsError

# --- Findings about the handler: connection, certificate and path; doctor sends it no event.

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


# --- Findings about exposed secrets and plaintext connections, which the worker logs at startup, too.


class ExposureKind(Kind):
    """Findings from the settings; the names of exposures equal the worker's log events."""

    SECRET_FILE_EXPOSED = warning(
        "every user of this machine may read a file with a secret",
        "a reader of the file gets all rights of the worker",
        "remove the read permission of others",
    )
    SECRET_FILE_UNREADABLE = note(
        "a file with a secret is missing, or the user who runs doctor may not read it",
        "a worker of the same user refuses to start",
        "correct the setting, or let the worker's user read the file",
    )
    PLAINTEXT_CONNECTION = note(
        "a connection to another machine is not encrypted by the worker",
        "the network between can read events and passwords, unless it encrypts by itself",
        "set up TLS as in docs/how-to/security.md",
    )


def exposure_findings(s: Settings) -> Iterator[Finding]:
    """Judge URLs and file modes."""
    if plain := "; ".join(in_plain_text(s)):
        yield ExposureKind.PLAINTEXT_CONNECTION.finding("settings", plain)
    for key, path in secret_files(s):
        if not os.access(path, os.R_OK):
            yield ExposureKind.SECRET_FILE_UNREADABLE.finding(key, f"{path} cannot be read")
    for key, path in readable_by_all(s):
        what = f"every user may read its file {path}"
        yield ExposureKind.SECRET_FILE_EXPOSED.finding(key, what, command=f"chmod o-rwx {quote(str(path))}")


_BYTES_MAX = 64 * 1024
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  (values of SEA_MQ_ADMIN_HOST)


class WorkerKind(Kind):
    """Findings from a running worker."""

    WORKER_NOT_READY = error(
        "the worker's /readyz says that it is not ready",
        "the named parts of its work pause",
        "fix the named cause; the worker then continues",
    )
    WORKER_SILENT = error(
        "a worker accepts connections and does not answer, as a stopped or overloaded process",
        "its work stands; others take it over once its leases have ended",
        "let the process continue (SIGCONT), or restart the worker",
    )
    WORKER_WARNS = warning(
        "the worker's /readyz warns of event types that the handler fails, while it accepts others",
        "their messages wait, or are dead-lettered at a low rate",
        "fix the handler, then follow the text",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReadiness:
    """Answer of ``/readyz`` at ``where``; a ready worker has no ``reasons``, a silent one gave no answer."""

    where: str
    reasons: Mapping[str, str]
    warnings: Mapping[str, str] = field(default_factory=dict)
    is_silent: bool = False


async def read_readiness(s: Settings) -> Sequence[WorkerReadiness]:
    """Read whether workers are ready, at each address of the host; a headless Service has several."""
    host = _ANYWHERE.get(s.admin_host, s.admin_host)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, s.admin_port, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    addresses = dict.fromkeys(str(address[0]) for *_, address in found)
    seen = await asyncio.gather(*(_readiness_at(address, s) for address in addresses))
    return [one for one in seen if one]


async def _readiness_at(host: str, s: Settings) -> WorkerReadiness | None:
    """Read whether the worker at an address is ready; None: no worker answers there."""
    where = f"worker at {host}:{s.admin_port}"
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(host, s.admin_port)
    except OSError:
        return None
    try:
        async with asyncio.timeout(_SECONDS):
            answer = await _get_readyz(host, s, reader, writer)
    except TimeoutError:
        return WorkerReadiness(where=where, reasons={}, is_silent=True)
    except (OSError, ValueError):
        return None
    finally:
        writer.close()
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        return None
    warnings = answer.get("warnings")
    return WorkerReadiness(
        where=where,
        reasons=_reasons(answer),
        warnings=_texts(warnings) if isinstance(warnings, dict) else {},
    )


def worker_findings(seen: WorkerReadiness) -> list[Finding]:
    if seen.is_silent:
        what = f"/readyz does not answer within {_SECONDS:g} s"
        return [WorkerKind.WORKER_SILENT.finding(seen.where, what)]
    reasons = "; ".join(f"{part}: {reason}" if reason else part for part, reason in seen.reasons.items())
    warnings = "; ".join(f"{name}: {text}" for name, text in seen.warnings.items())
    return [
        kind.finding(seen.where, text)
        for kind, text in ((WorkerKind.WORKER_NOT_READY, reasons), (WorkerKind.WORKER_WARNS, warnings))
        if text
    ]


def _reasons(answer: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the reason by part; without the worker's token the answer has only the parts."""
    if answer["ok"]:
        return {}
    reasons = answer.get("reasons")
    if isinstance(reasons, dict):
        return _texts(reasons)
    return {str(part): "" for part in answer.get("parts") or ["the answer has no reason"]}


def _texts(texts: Mapping[Any, Any]) -> Mapping[str, str]:
    return {str(name): str(text) for name, text in texts.items()}


def _token(s: Settings) -> str:
    """Return the token; empty if it cannot be read: /readyz then names the parts without their reasons."""
    try:
        return read_secret(s.admin_token_file, key="admin_token_file")
    except (SettingsError, UnavailableError):
        return ""


async def _get_readyz(
    host: str, s: Settings, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Any:
    token = _token(s)
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    name = f"[{host}]" if ":" in host else host
    writer.write(f"GET /readyz HTTP/1.1\r\nHost: {name}\r\n{shown}Connection: close\r\n\r\n".encode())
    answer = await reader.read(_BYTES_MAX)
    while len(answer) < _BYTES_MAX and (more := await reader.read(_BYTES_MAX)):
        answer += more
    return json.loads(answer.partition(b"\r\n\r\n")[2])
