"""What the worker says of itself, where one answers at the address of the settings."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sea_mq_worker.connections.secret_files import read_secret
from sea_mq_worker.doctor.catalog import Kind
from sea_mq_worker.doctor.finding import Finding, Severity
from sea_mq_worker.settings import Settings

_SECONDS = 3.0
_BYTES_MAX = 64 * 1024
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  (the worker's own words for it)


class WorkerKind(Kind):
    """Found by asking a worker that runs."""

    WORKER_NOT_READY = (
        Severity.ERROR,
        "the worker at SEA_MQ_ADMIN_HOST and SEA_MQ_ADMIN_PORT answers /readyz that it is not ready",
        "what it names does not serve it: that part of its work pauses",
        "mend what it names; the worker then goes on by itself",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """What ``/readyz`` told: nothing if it is ready; ``where`` it was asked."""

    where: str
    reasons: Mapping[str, str]


async def ask_worker(s: Settings) -> WorkerSeen | None:
    """Ask a worker whether it is ready; None: nobody answers there as a worker does."""
    host = _ANYWHERE.get(s.admin_host, s.admin_host)
    try:
        async with asyncio.timeout(_SECONDS):
            answer = await _asked(host, s)
    except (OSError, ValueError):
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        return None
    return WorkerSeen(where=f"worker at {host}:{s.admin_port}", reasons=_reasons(answer))


def worker_findings(seen: WorkerSeen) -> list[Finding]:
    """Judge what it said."""
    told = "; ".join(f"{part}: {reason}" if reason else part for part, reason in seen.reasons.items())
    return [WorkerKind.WORKER_NOT_READY.found(seen.where, told)] if told else []


def _reasons(answer: Mapping[str, Any]) -> Mapping[str, str]:
    """Without the worker's token it names the parts alone."""
    if answer["ok"]:
        return {}
    reasons = answer.get("reasons")
    if isinstance(reasons, dict):
        return {str(part): str(reason) for part, reason in reasons.items()}
    return {str(part): "" for part in answer.get("parts") or ["it does not say why"]}


async def _asked(host: str, s: Settings) -> Any:
    reader, writer = await asyncio.open_connection(host, s.admin_port)
    try:
        token = read_secret(s.admin_token_file, key="admin_token_file")
        shown = f"Authorization: Bearer {token}\r\n" if token else ""
        name = f"[{host}]" if ":" in host else host
        writer.write(f"GET /readyz HTTP/1.1\r\nHost: {name}\r\n{shown}Connection: close\r\n\r\n".encode())
        answer = await reader.read(_BYTES_MAX)
        while len(answer) < _BYTES_MAX and (more := await reader.read(_BYTES_MAX)):
            answer += more
        return json.loads(answer.partition(b"\r\n\r\n")[2])
    finally:
        writer.close()
