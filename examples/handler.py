"""A sample handler in FastAPI: copy the request model and the statuses 409 and 422, and replace the effect.

Run it with ``uvicorn handler:app --port 8000`` and point the worker at http://127.0.0.1:8000/handle.

The contract in four lines:

- 200: the effect has taken place. A real service writes the message ID and the effect in one database
  transaction (``sea_mq_worker.producer.once.once``), so that a crash leaves both or neither. This example
  uses a dictionary instead of a table.
- 409: this message ID was handled before. The worker delivers at least once, so repeated deliveries happen.
- 422: this message can never be handled. The worker moves it to the dead-letter stream.
- 5xx, or no response in time: the message cannot be handled now. The worker retries later.

``/handle-batch`` is for workers with ``SEA_MQ_HANDLER_BATCH_URL``: it takes an array of messages, and answers
200 with the status of each.

FastAPI itself responds with 422 to a body that does not match the model. Keep ``Message`` unchanged and
validate the payload in your own code. Otherwise a mistake in your model dead-letters good messages.
"""

from collections import Counter
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

FLAKY_FAILURES = 2


class Message(BaseModel):
    """The body of the worker's request (SDS-047, handler contract). A later worker may add keys."""

    model_config = ConfigDict(extra="ignore", frozen=True)

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
    """Apply the message's effect once."""
    calls[message.message_id] += 1
    if message.message_id in effects:
        raise HTTPException(409, "handled before")
    _misbehave_if_asked(message)
    effects[message.message_id] = message.event_type
    return {"result": "handled"}


@app.post("/handle-batch")
async def handle_batch(messages: list[Message]) -> JSONResponse:
    """Handle each message by itself, and answer with each one's ID and status."""
    answers = []
    for message in messages:
        try:
            await handle(message)
        except HTTPException as error:
            answers.append({"message_id": str(message.message_id), "status": error.status_code})
        else:
            answers.append({"message_id": str(message.message_id), "status": 200})
    return JSONResponse(answers)


@app.get("/effects")
async def show_effects() -> dict[str, object]:
    """Return the number of handled messages, of all calls, and of messages by event type."""
    return {
        "effects": len(effects),
        "calls": calls.total(),
        "by_event_type": Counter(effects.values()),
    }


@app.get("/effects/{message_id}")
async def show_effect(message_id: UUID) -> dict[str, object]:
    """Return whether one message took effect, and the number of its calls."""
    return {"effect": message_id in effects, "calls": calls[message_id]}


def _misbehave_if_asked(message: Message) -> None:
    """Fail on request, for demonstrations: ``{"poison": true}`` always, ``{"flaky": true}`` at first."""
    payload = message.payload if isinstance(message.payload, dict) else {}
    if payload.get("poison") is True:
        raise HTTPException(422, "this message can never be handled")
    if payload.get("flaky") is True and calls[message.message_id] <= FLAKY_FAILURES:
        raise HTTPException(503, "not now")
