"""Messages as no publisher should send them, written to the wire by hand."""

import asyncio
import json
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from sea_mq_worker.adapters.nats.connection import api
from tests.fuzz.chance import Chance
from tests.support.handlers import Call, answer, hang, raw
from tests.support.jetstream import stored_messages
from tests.support.site import Site

_ANSWER_SECONDS = 5.0
_BODIES = (
    *(b"", b"{", b"\xff\xfe", b"NaN", b'{"a":1}{"b":2}', b"\xef\xbb\xbf{}", b'"\\ud800"'),
    b"[" * 100_000,
)
_BODY_BYTES_MAX = 900 * 1024
_NAMES = ("ce-id", "ce-time", "ce-correlationid", "traceparent", "Nats-Fancy", "Dlq-Reason", "", "a b", "é")
_NEW_SHARE = 0.95
_TAILS = ("a", "a.v0", "a.v01", "a.V1", "a.b.c.d.v1", "é.v1", "v1", "a.v1.x", "a.v99999999999")
_UNUSUAL = (
    answer(422),
    answer(500),
    answer(503, retry_after="1"),
    answer(429, retry_after="-1"),
    answer(404),
    raw(b"", reset=True),
    raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", close=True),
    raw(b"\x00\xff not HTTP\r\n\r\n", close=True),
    hang,
)


class Service:
    """A handler with one effect for each id, and now and then an answer of any other kind."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.effects: Counter[str] = Counter()

    async def take(self, call: Call, writer: Any) -> None:
        """Behave so as the handler."""
        sent = json.loads(call.body)
        assert sent["message_id"] == call.message_id
        if self._chance.random() < 0.1:
            await self._chance.choice(_UNUSUAL)(call, writer)
            return
        known = call.message_id in self.effects
        self.effects[call.message_id] += not known
        body = b"x" * self._chance.choice((0, 0, 0, 100_000))
        await answer(409 if known else 200, body)(call, writer)


class Wire:
    """Speaks NATS' protocol without minding what it carries."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self.refused = 0

    async def publish(self, subject: bytes, headers: bytes, body: bytes) -> None:
        """Send one message on a connection of its own; count it if the server takes offence."""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        try:
            await reader.readline()
            writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
            writer.write(_frame(subject, headers, body) + b"PING\r\n")
            async with asyncio.timeout(_ANSWER_SECONDS):
                answered = await reader.readline()
            self.refused += answered.startswith(b"-ERR")
        except OSError:
            self.refused += 1
        finally:
            writer.close()


def _frame(subject: bytes, headers: bytes, body: bytes) -> bytes:
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body)
    block = b"NATS/1.0\r\n" + headers + b"\r\n"
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(block), len(block) + len(body), block, body)


class Messages:
    """What was sent to the upstream stream."""

    def __init__(self, site: Site, url: str, chance: Chance) -> None:
        self._site = site
        self._chance = chance
        self.wire = Wire(url)
        self._ids: list[str] = []
        self._last: tuple[bytes, bytes, bytes] | tuple[()] = ()

    async def send(self) -> None:
        """Publish one message; one in twenty is the last one again."""
        if not self._last or self._chance.random() < _NEW_SHARE:
            self._last = (self._subject(), self._headers(), self._body())
        await self.wire.publish(*self._last)

    def _subject(self) -> bytes:
        tail = self._chance.often(
            lambda: f"{self._chance.word()}.v{self._chance.randint(1, 3)}",
            lambda: self._chance.choice(_TAILS),
        )
        return f"{self._site.target.upstream}.event.{tail}".encode()

    def _headers(self) -> bytes:
        name = self._chance.choice(("Nats-Msg-Id", "Nats-Msg-Id", "ce-id", ""))
        lines = [f"{name}: {self._id()}".encode()] if name else []
        for _ in range(self._chance.randrange(3)):
            name = self._chance.often(self._chance.word, lambda: self._chance.choice(_NAMES))
            value = self._chance.often(self._chance.word, self._chance.text)
            lines.append(f"{name}:{value}".replace("\r", "").replace("\n", "").encode())
        return b"".join(line + b"\r\n" for line in lines)

    def _id(self) -> str:
        """Draw an id; one in twenty was there before, with another content or the same."""
        if self._ids and self._chance.random() < 0.05:
            return self._chance.choice(self._ids)
        found = self._chance.often(self._chance.uuid, self._bad_id, nasty_share=0.15)
        self._ids.append(found)
        return found

    def _bad_id(self) -> str:
        good = self._chance.uuid()
        return self._chance.choice(("", "7", f"{{{good}}}", good.upper(), f"urn:uuid:{good}", "é", "a\tb"))

    def _body(self) -> bytes:
        body: bytes = self._chance.often(
            lambda: self._chance.json().encode(), lambda: self._chance.choice(_BODIES), nasty_share=0.2
        )
        return body[:_BODY_BYTES_MAX]

    async def audit(self, service: Service) -> dict[str, int]:
        """Prove that each stored message had its one effect or is a dead letter; count both."""
        rows = await self._site.database.fetch("SELECT * FROM inbox_messages")
        assert all((row["processed_at"] is None) != (row["dead_lettered_at"] is None) for row in rows)
        done = {str(row["message_id"]) for row in rows if row["processed_at"] is not None}
        assert Counter(done) == service.effects
        letters = await stored_messages(self._site.broker, f"{self._site.target.context.upper()}_DLQ")
        buried = Counter(int(headers["Dlq-Stream-Sequence"]) for *_, headers in letters)
        assert max(buried.values(), default=0) <= 1
        handled = {row["stream_seq"] for row in rows if row["processed_at"] is not None}
        state = (await api(self._site.broker, f"STREAM.INFO.{self._site.target.upstream_stream}"))["state"]
        stored = set(range(1, state["last_seq"] + 1))
        same_again = len(stored - handled - buried.keys())
        assert not handled & buried.keys()
        assert stored >= handled | buried.keys()
        return {
            "processed": len(handled),
            "dead letters": len(buried),
            "known already": same_again,
            "refused": self.wire.refused,
        }
