"""The service's handler, with a table of effects and a behaviour that faults change."""

import asyncio
import hashlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.support.handlers import Behaviour, Call, answer, raw

_PAYLOAD = b', "payload": '
_HANG_SECONDS = 3.0
"""Longer than the worker's time-out."""

Mood = str
MOODS: dict[Mood, Behaviour] = {
    "fails": answer(500),
    "resets": raw(b"", reset=True),
    "busy": answer(429, retry_after="1"),
    "garbles": raw(b"HTTP/1.1 2", close=True),
}


@dataclass(frozen=True, slots=True)
class Heard:
    """One call: message, worker, time, and hash of the payload."""

    id: str
    worker: str
    at: float
    digest: str
    status: int
    """Status of the response; 0: no response."""


@dataclass
class Service:
    """An idempotent service; messages in ``rejects`` get status 422, those in ``never`` 500."""

    chance: random.Random
    mood: Mood = "well"
    heard: list[Heard] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    rejects: set[str] = field(default_factory=set)
    never: set[str] = field(default_factory=set)

    async def take(self, call: Call, writer: asyncio.StreamWriter) -> None:
        """Respond to a call according to the present behaviour."""
        mood, came = self.mood, time.time()
        await asyncio.sleep(self.chance.uniform(0.005, 0.1))
        if mood == "hangs":
            self._note(call, came, 0)
            await asyncio.sleep(_HANG_SECONDS)
            writer.transport.abort()
            return
        if mood in MOODS:
            self._note(call, came, 0)
            await MOODS[mood](call, writer)
            return
        status = self._status(call.message_id)
        if mood == "works_then_resets":
            self._note(call, came, 0)
            await MOODS["resets"](call, writer)
            return
        self._note(call, came, status)
        await answer(status)(call, writer)

    def _status(self, message_id: str) -> int:
        if message_id in self.rejects:
            return 422
        if message_id in self.never:
            return 500
        if message_id in self.effects:
            return 409
        self.effects[message_id] += 1
        return 200

    def _note(self, call: Call, came: float, status: int) -> None:
        payload = call.body.partition(_PAYLOAD)[2][:-1]
        worker = call.path.rpartition("/")[2]
        digest = hashlib.sha256(payload).hexdigest()
        self.heard.append(Heard(call.message_id, worker, came, digest, status))
