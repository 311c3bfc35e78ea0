"""HandlerContract notices each way in which a handler breaks the contract."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sea_mq_worker.testing.handler_contract import HandlerContract


class Handler:
    """Handles messages by ID; each attribute breaks one rule."""

    def __init__(self, *, status: int = 200, forgets: bool = False, idle: bool = False) -> None:
        self.effects: list[str] = []
        self._status, self._forgets, self._idle = status, forgets, idle
        self.seen: set[str] = set()

    def post(self, message: Mapping[str, Any]) -> int:
        if message["message_id"] in self.seen and not self._forgets:
            return 409
        if not self._idle:
            self.seen.add(message["message_id"])
            self.effects.append(message["message_id"])
        return self._status


def contract(handler: Handler) -> HandlerContract:
    return HandlerContract(post=handler.post, event_type="order.paid")


def count(handler: Handler) -> Callable[[], object]:
    return lambda: len(handler.effects)


def test_a_handler_that_keeps_the_contract_passes() -> None:
    processing, rejecting = Handler(), Handler(status=422, idle=True)
    failing = Handler(status=503, idle=True)

    contract(processing).processes({"order": 7}, effects=count(processing))
    contract(rejecting).rejects({"order": 7}, effects=count(rejecting))
    message = contract(failing).retries({"order": 7}, effects=count(failing))

    assert message["subject"] == "upstream.event.order.paid.v1"
    assert message["payload"] == {"order": 7}


@pytest.mark.parametrize(
    ("handler", "promise", "problem"),
    [
        (Handler(status=204), "processes", "expected 200 for a message that can be processed, not 204"),
        (Handler(idle=True), "processes", "status 200, but no effect: 0 as before"),
        (Handler(forgets=True), "processes", "the second delivery changed 1 to 2"),
        (Handler(status=400, idle=True), "rejects", "422 for a message that can never be processed, not 400"),
        (Handler(status=422), "rejects", "422 for its second delivery .*, not 409"),
        (Handler(status=422, forgets=True), "rejects", "a rejected message changed 0 to 2"),
        (Handler(status=400, idle=True), "retries", "expected 429 or 5xx for a temporary failure, not 400"),
        (Handler(status=503), "retries", "a failed message changed 0 to 1"),
    ],
)
def test_each_way_to_break_the_contract_is_reported(handler: Handler, promise: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        getattr(contract(handler), promise)({}, effects=count(handler))
