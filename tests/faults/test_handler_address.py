"""A message goes to the configured handler and nowhere else."""

from pathlib import Path

import pytest

from tests.support.site import Site
from tests.support.worker import deployment, running


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
