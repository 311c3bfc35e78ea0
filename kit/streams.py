"""Read whole streams, not through the proxies."""

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass

from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.errors import ApiRefusedError

_AT_ONCE = 100
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored message."""

    seq: int
    subject: str = ""
    body: bytes
    headers: Mapping[str, str]


async def stored(broker: NatsConnection, stream: str, *, first: int = 1) -> list[Message]:
    """Return a stream's messages from a sequence on, without those removed."""
    state = (await api(broker, f"STREAM.INFO.{stream}"))["state"]
    found: list[Message] = []
    seqs = range(max(state["first_seq"], first), state["last_seq"] + 1)
    for begin in range(0, len(seqs), _AT_ONCE):
        some = await asyncio.gather(*(_read(broker, stream, seq) for seq in seqs[begin : begin + _AT_ONCE]))
        found += [message for message in some if message is not None]
    return found


async def _read(broker: NatsConnection, stream: str, seq: int) -> Message | None:
    try:
        answer = await api(broker, f"STREAM.MSG.GET.{stream}", {"seq": seq})
    except ApiRefusedError as error:
        if error.code != _NOT_FOUND:
            raise
        return None
    message = answer["message"]
    lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
    headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    body = base64.b64decode(message.get("data", ""))
    return Message(seq=seq, subject=message["subject"], body=body, headers=headers)
