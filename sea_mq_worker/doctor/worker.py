"""Readiness of a running worker, read at the admin address of the settings."""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sea_mq_worker.connections.secret_files import read_secret
from sea_mq_worker.doctor.finding import Finding, Kind, error, warning
from sea_mq_worker.domain.errors import UnavailableError
from sea_mq_worker.settings import Settings, SettingsError

_SECONDS = 3.0
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
