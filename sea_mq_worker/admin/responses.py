"""What the admin server answers, and the headers that keep browsers from doing more with it."""

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
"""Parts that tell more than that something pauses."""


@dataclass(frozen=True, slots=True)
class AdminResponse:
    """One response; ``headers`` come on top of those that every answer has."""

    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[str, ...] = ()

    def to_bytes(self, *, head_only: bool = False) -> bytes:
        """Return what goes over the wire; a body left empty says the status in words."""
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
    """Answer with JSON; dataclasses become objects, moments and ids texts."""
    return AdminResponse(status, json.dumps(data, default=_plain).encode(), "application/json")


def refusal(status: HTTPStatus, text: str, *headers: str) -> AdminResponse:
    """Answer that something is not done, and why, as the page shows it."""
    answer = json_response({"error": text}, status)
    return AdminResponse(status, answer.body, answer.content_type, headers)


def health(reasons: Mapping[str, str], *, authorized: bool) -> AdminResponse:
    """Answer a probe: which parts are in the way is for everybody, why is for those who may know it."""
    if not reasons:
        return json_response({"ok": True})
    state = next((told for part, told in _STATES.items() if part in reasons), "paused")
    told = {"ok": False, "state": state, "parts": sorted(reasons)}
    if authorized:
        told["reasons"] = dict(reasons)
    return json_response(told, HTTPStatus.SERVICE_UNAVAILABLE)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if isoformat else str(value)
