"""Nasty values, drawn from one seed."""

import json
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

_TEXTS = (
    "", " ", ".", "..", "a..b", "*", ">", "a.*", "\t", "\r\n", "a\r\nNats-Rollup: all", "\x00", "\x1b[31m",
    "\u202e", "\ufeff", "é", "日本", "🦀", "'", '"', "\\", "%", "%s", "{}", "${HOME}",
    "../../etc", "; DROP TABLE outbox_events", "null", "NaN", "-1", "1e309", "true", "order.created",
    "x" * 300, "x" * 5000, "$JS.API.>", "_INBOX.a", "v1",
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**63, 10**30, 0.1, 1e-7, 1e308, -0.0, 12345678901234567890)
_PLAIN = "abcdefghijklmnopqrstuvwxyz0123456789_-."
_DEPTH_MAX = 4


class Chance(random.Random):
    """The draws of one campaign."""

    def often(self, usual: Callable[[], T], nasty: Callable[[], T], *, nasty_share: float = 0.3) -> T:
        """Draw a nasty value in so many of all cases."""
        return nasty() if self.random() < nasty_share else usual()

    def maybe(self, value: Any) -> Any:
        """Leave a value out in two of three cases."""
        return self.choice((None, None, value))

    def text(self) -> str:
        """Draw a text: a notorious one, or a mixture of characters without lone surrogates."""
        if self.random() < 0.6:
            return self.choice(_TEXTS)
        characters = (
            chr(self.choice((self.randrange(128), self.randrange(0xD7FF)))) for _ in range(self.randrange(30))
        )
        return "".join(characters)

    def word(self) -> str:
        """Draw a well-behaved token."""
        return "".join(self.choices(_PLAIN[:26], k=self.randint(1, 12)))

    def value(self, depth: int = 0) -> Any:
        """Draw something that JSON can say."""
        kinds: Sequence[Callable[[], Any]] = (
            self.text,
            lambda: self.choice(_NUMBERS),
            lambda: self.choice((None, True, False)),
            lambda: [self.value(depth + 1) for _ in range(self.randrange(4))],
            lambda: {self.text(): self.value(depth + 1) for _ in range(self.randrange(4))},
        )
        return self.choice(kinds if depth < _DEPTH_MAX else kinds[:3])()

    def json(self) -> str:
        """Draw a JSON text."""
        return self.often(lambda: json.dumps(self.value()), self._large_json, nasty_share=0.02)

    def uuid(self) -> str:
        """Draw a UUID."""
        return str(uuid.UUID(int=self.getrandbits(128), version=4))

    def _large_json(self) -> str:
        kind = self.choice(("wide", "deep"))
        return json.dumps("x" * self.randrange(2**21)) if kind == "wide" else "[" * 3000 + "]" * 3000
