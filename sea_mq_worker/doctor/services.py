"""The handler and running workers as doctor sees them: one request to each, and no event."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sea_mq_worker.connections import handler_tls, read_secret
from sea_mq_worker.doctor.findings import Finding, error, warning
from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.settings import Settings, SettingsError

_SECONDS = 3.0
_WRONG = {0, 404, *range(300, 400), *range(500, 600)} - {501}
"""Statuses of a wrong path or broken handler; a server without OPTIONS answers 405 or 501.

401 and 403 are not wrong: doctor sends no token.
"""
_BYTES_MAX = 64 * 1024
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  (values of SEA_MQ_ADMIN_HOST)


async def handler_findings(s: Settings) -> AsyncIterator[Finding]:
    """Connect, and request the path of each URL by OPTIONS."""
    for name, text in (("handler", s.handler_url), ("batch handler", s.handler_batch_url)):
        if text and (finding := await _examine(name, urlsplit(text), s)):
            yield finding


async def _examine(name: str, url: SplitResult, s: Settings) -> Finding | None:
    port = url.port or (443 if url.scheme == "https" else 80)
    where = f"{name} {url.hostname}:{port}"
    trust = (handler_tls(s) or ssl.create_default_context()) if url.scheme == "https" else None
    target = SplitResult("", "", url.path or "/", url.query, "").geturl()
    host = url.netloc.rpartition("@")[2]
    line = b""
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(url.hostname, port, ssl=trust)
    except ssl.SSLError as refused:
        reason = getattr(refused, "verify_message", "") or refused.reason
        return _unreachable(where, f"it cannot be trusted ({reason})")
    except (OSError, UnicodeError) as failed:
        what = getattr(failed, "strerror", "") or str(failed) or f"no answer within {_SECONDS:g} s"
        return _unreachable(where, what)
    try:
        writer.write(f"OPTIONS {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        with contextlib.suppress(OSError, ValueError):
            async with asyncio.timeout(_SECONDS):
                line = await reader.readline()
    finally:
        writer.close()
    if not line:
        return _unreachable(where, f"connected, and no answer to OPTIONS within {_SECONDS:g} s")
    shown = line.split(b" ")[1:2]
    status = int(shown[0]) if shown and shown[0].isdigit() else 0
    if status not in _WRONG:
        return None
    return warning(
        "handler_path", where, f"{status} to OPTIONS" if status else "its answer to OPTIONS is not HTTP",
        why="the worker retries messages and then dead-letters them",
        fix="correct path and scheme of SEA_MQ_HANDLER_URL or SEA_MQ_HANDLER_BATCH_URL, or fix the handler",
    )  # fmt: skip


def _unreachable(where: str, what: str) -> Finding:
    return error(
        "handler_unreachable", where, what,
        why="receiving pauses, or calls wait until SEA_MQ_HANDLER_TIMEOUT_SECONDS without effect",
        fix="start the handler, restart one that does not answer, or correct SEA_MQ_HANDLER_URL, its "
        "certificate, SEA_MQ_HANDLER_TLS_* or a clock",
    )  # fmt: skip


async def read_readiness(s: Settings) -> Mapping[str, Mapping[str, Any] | None]:
    """Return the answer of /readyz by worker, at each address of the host; None: it is silent.

    A headless Service has several addresses. Where no worker answers, there is no entry.
    """
    host = _ANYWHERE.get(s.admin_host, s.admin_host)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, s.admin_port, type=socket.SOCK_STREAM)
    except OSError:
        return {}
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    answers = await asyncio.gather(*(_readyz(address, s) for address in addresses), return_exceptions=True)
    seen: dict[str, Mapping[str, Any] | None] = {}
    for address, answer in zip(addresses, answers, strict=True):
        where = f"worker at {address}:{s.admin_port}"
        if answer is None or (isinstance(answer, dict) and isinstance(answer.get("ok"), bool)):
            seen[where] = answer
        elif isinstance(answer, BaseException) and not isinstance(answer, (OSError, ValueError)):
            raise answer
    return seen


async def _readyz(host: str, s: Settings) -> Any:
    """Ask with the token, if it can be read: without it /readyz names the parts without their reasons."""
    try:
        token = read_secret(s.admin_token_file, key="admin_token_file")
    except (SettingsError, UnavailableError):
        token = ""
    async with asyncio.timeout(_SECONDS):
        reader, writer = await asyncio.open_connection(host, s.admin_port)
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    name = f"[{host}]" if ":" in host else host
    try:
        async with asyncio.timeout(_SECONDS):
            writer.write(f"GET /readyz HTTP/1.1\r\nHost: {name}\r\n{shown}Connection: close\r\n\r\n".encode())
            answer = await reader.read(_BYTES_MAX)
            while len(answer) < _BYTES_MAX and (more := await reader.read(_BYTES_MAX)):
                answer += more
    except TimeoutError:
        return None
    finally:
        writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def worker_findings(where: str, answer: Mapping[str, Any] | None) -> Iterator[Finding]:
    reasons: Sequence[str] = ()
    if answer is None:
        reasons = [f"/readyz does not answer within {_SECONDS:g} s"]
    elif not answer["ok"]:
        reasons = _texts(answer.get("reasons")) or answer.get("parts") or ["the answer has no reason"]
    if reasons:
        yield error(
            "worker_not_ready", where, "; ".join(map(str, reasons)),
            why="the named parts of its work pause; of a silent worker all, until others take over",
            fix="fix the named cause; let a stopped process continue (SIGCONT), or restart it",
        )  # fmt: skip
    if answer and (warnings := _texts(answer.get("warnings"))):
        yield warning(
            "worker_warns", where, "; ".join(warnings),
            why="the handler fails messages of these types: they wait, or are dead-lettered at a low rate",
            fix="fix the handler, then follow the text",
        )  # fmt: skip


def _texts(named: object) -> list[str]:
    return [f"{name}: {text}" for name, text in named.items()] if isinstance(named, dict) else []
