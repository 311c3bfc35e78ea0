"""A message goes to the configured handler and nowhere else."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.handlers import HandlerServer, answer, handler_server, in_turn
from tests.support.site import Site
from tests.support.worker import deployment, running


@pytest.fixture
async def canary() -> AsyncIterator[HandlerServer]:
    """A server that must not be asked anything."""
    async with handler_server() as server:
        yield server
        assert server.connections == 0


@pytest.mark.fault("S08")
@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "https://metadata.google.internal/computeMetadata/v1/",
    ],
)
async def test_a_metadata_service_is_no_handler(url: str, tmp_path: Path) -> None:
    target = deployment(
        context="sea",
        database_url="postgresql://127.0.0.1:1/d",
        nats_url="nats://127.0.0.1:1",
        handler_url=url,
    )
    async with running(target, tmp_path / "worker.log") as worker:
        assert await worker.ended() == 2
    [line] = worker.written.strip().splitlines()
    assert "SEA_MQ_HANDLER_URL" in line
    assert "handler_allow_link_local" in line


@pytest.mark.fault("S08")
async def test_a_link_local_handler_is_taken_where_a_setting_says_so(shared: Site) -> None:
    url = "https://169.254.1.1/handle"
    async with shared.worker(handler_url=url, handler_allow_link_local=True) as worker:
        await worker.ready()


@pytest.mark.fault("S08")
async def test_redirects_and_the_environments_proxies_lead_nowhere(
    shared: Site, canary: HandlerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
        monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{canary.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    messages = await shared.send(5)
    for message, status in zip(messages, (301, 302, 303, 307, 308), strict=True):
        elsewhere = answer(status, location=canary.url, refresh=f"0; url={canary.url}")
        shared.effects.script[message] = in_turn(elsewhere, answer(409))
        shared.effects.taken[message] = 1
    async with shared.worker():
        await shared.quiet()
    await shared.audit()
    assert shared.effects.calls == dict.fromkeys(messages, 2)
