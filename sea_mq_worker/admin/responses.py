"""Responses of the admin server, with headers that restrict browsers; the one place that writes JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from http import HTTPStatus

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
