"""Check that a service's handler keeps the contract of the four answers, and is idempotent.

Needs no server and no other package: the checks call the handler through a function of the test. With the
test client of FastAPI or Flask that is ``lambda body: client.post("/handle", json=body).status_code``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

_PROCESSED = 200
_HANDLED_BEFORE = 409
_REJECTED = 422
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500

Post = Callable[[Mapping[str, Any]], int]
"""Sends the JSON of a message to the handler and returns the status of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContract:
    """The requirements on a handler, for messages of one event type; each method fails with AssertionError.

    Attributes:
        post: sends a message to the handler.
        event_type: the type of the messages.
        event_version: their version.
        context: the context that published them.
    """

    post: Post
    event_type: str
    event_version: int = 1
    context: str = "upstream"

    def message(self, payload: Any) -> dict[str, Any]:
        """Return the JSON that the worker sends for a message with a new ID."""
        return {
            "message_id": str(uuid4()),
            "subject": f"{self.context}.event.{self.event_type}.v{self.event_version}",
            "event_type": self.event_type,
            "event_version": self.event_version,
            "occurred_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "correlation_id": None,
            "causation_id": None,
            "payload": payload,
        }

    def processes(self, payload: Any, *, effects: Callable[[], object]) -> None:
        """Check that a message is processed, and that a second delivery of it changes nothing.

        Args:
            payload: of a message that the handler can process.
            effects: returns a value that each effect changes, such as the number of rows.
        """
        message, before = self.message(payload), effects()
        self._answers(message, "a message that can be processed", _PROCESSED)
        after = effects()
        _require(after != before, f"status 200, but no effect: {after!r} as before")
        self._answers(message, "a message that was processed before", _PROCESSED, _HANDLED_BEFORE)
        _require(effects() == after, f"the second delivery changed {after!r} to {effects()!r}")

    def rejects(self, payload: Any, *, effects: Callable[[], object]) -> None:
        """Check that a message that can never be processed is rejected each time, without an effect."""
        message, before = self.message(payload), effects()
        self._answers(message, "a message that can never be processed", _REJECTED)
        self._answers(message, "its second delivery (a rejected message leaves no mark)", _REJECTED)
        _require(effects() == before, f"a rejected message changed {before!r} to {effects()!r}")

    def retries(self, payload: Any, *, effects: Callable[[], object]) -> dict[str, Any]:
        """Check that a message gets an answer that the worker retries, without an effect.

        Returns:
            The message, to be sent again when the handler can process it.
        """
        message, before = self.message(payload), effects()
        status = self.post(message)
        is_temporary = status == _TOO_MANY_REQUESTS or status >= _SERVER_ERRORS
        _require(is_temporary, f"expected 429 or 5xx for a temporary failure, not {status}")
        _require(effects() == before, f"a failed message changed {before!r} to {effects()!r}")
        return message

    def _answers(self, message: Mapping[str, Any], which: str, *wanted: int) -> None:
        status = self.post(message)
        _require(status in wanted, f"expected {' or '.join(map(str, wanted))} for {which}, not {status}")


def _require(is_kept: bool, problem: str) -> None:
    if not is_kept:
        raise AssertionError(problem)
