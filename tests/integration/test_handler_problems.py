"""Of what the handler says by RFC 9457, errors keep type and title, and only where that is asked for."""

import pytest

from sea_mq_worker.adapters.http.handler import HttpEventHandler
from sea_mq_worker.domain.outcomes import Poison
from tests.integration.test_http_handler import REQUEST
from tests.support.handlers import answer, handler_server

CANARY = b"canary-5f2e"
PROBLEM = (
    b'{"type": "https://x.example/no-such-currency", "title": "No such\\n currency", "status": 422,'
    b' "detail": "%s", "instance": "/%s"}'
) % (CANARY, CANARY)


@pytest.mark.parametrize(
    ("content_type", "body", "reported"),
    [
        ("application/problem+json; a=b", PROBLEM, "https://x.example/no-such-currency, No such currency"),
        ("application/problem+json", b'{"title": "%s"}' % (b"x" * 9000), "x" * 120),
        ("application/problem+json", b'{"title": 5}', "with 12 bytes"),
        ("application/problem+json", b"[1", "with 2 bytes"),
        ("application/problem+json", b"[" * 50_000, "with 50000 bytes"),
        ("application/problem+json", b'{"title": "a\\u001b[2J\\u202eb"}', "a[2Jb"),
        ("application/json", PROBLEM, f"with {len(PROBLEM)} bytes"),
    ],
)
@pytest.mark.parametrize("keep", [True, False])
async def test_type_and_title_are_kept_where_that_is_asked_for(
    keep: bool, content_type: str, body: bytes, reported: str
) -> None:
    async with handler_server() as server:
        server.default = answer(422, body, content_type=content_type)
        handler = HttpEventHandler(url=server.url, timeout_seconds=5.0, concurrency=1, keep_problem=keep)
        reported = reported if keep else f"with {len(body)} bytes"
        assert await handler.handle(REQUEST) == Poison(f"the handler answered 422 ({reported})")
        await handler.close()
