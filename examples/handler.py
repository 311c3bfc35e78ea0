"""A handler for the worker, in FastAPI: copy the request model, the 409 and the 422; replace the effect.

Run it with ``uvicorn handler:app --port 8000`` and point the worker at http://127.0.0.1:8000/handle.

The contract in four lines:

- 200: the effect is there now. In a real service the message id and the effect are written in one database
  transaction, so that a crash leaves both or neither; here a dictionary stands for that table.
- 409: this message id was handled before. The worker delivers at least once, so this happens.
- 422: this message can never be handled; the worker moves it to the dead-letter stream.
- 5xx, or no answer in time: not now; the worker comes back later.

FastAPI itself answers 422 to a body that does not fit the model. Keep ``Message`` as it is and leave the
payload's own model to the code behind it, or a mistake in your model dead-letters good messages.
"""

from collections import Counter
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field

FLAKY_FAILURES = 2


class Message(BaseModel):
    """What the worker posts (SDS-047, handler contract)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    message_id: UUID
    subject: str
    event_type: str
    event_version: Annotated[int, Field(ge=1, strict=True)]
    occurred_at: datetime
    correlation_id: UUID | None
    causation_id: UUID | None
    payload: Any


app = FastAPI(title="Sample handler")
effects: dict[UUID, str] = {}
calls: Counter[UUID] = Counter()


@app.post("/handle")
async def handle(message: Message) -> dict[str, str]:
    """Take the message's effect once."""
    calls[message.message_id] += 1
    if message.message_id in effects:
        raise HTTPException(409, "handled before")
    _misbehave_if_asked(message)
    effects[message.message_id] = message.event_type
    return {"result": "handled"}


@app.get("/effects")
async def show_effects() -> dict[str, object]:
    """Tell what was handled: how many messages, calls in all, messages by event type."""
    return {
        "effects": len(effects),
        "calls": calls.total(),
        "by_event_type": Counter(effects.values()),
    }


@app.get("/effects/{message_id}")
async def show_effect(message_id: UUID) -> dict[str, object]:
    """Tell whether one message took effect, and in how many calls."""
    return {"effect": message_id in effects, "calls": calls[message_id]}


def _misbehave_if_asked(message: Message) -> None:
    """Let a demonstration see the worker's other answers: ``{"poison": true}`` and ``{"flaky": true}``."""
    wishes = message.payload if isinstance(message.payload, dict) else {}
    if wishes.get("poison") is True:
        raise HTTPException(422, "this message can never be handled")
    if wishes.get("flaky") is True and calls[message.message_id] <= FLAKY_FAILURES:
        raise HTTPException(503, "not now")
