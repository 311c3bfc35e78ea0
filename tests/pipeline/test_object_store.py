"""A lake in an object store, as the command makes it: Spark's connector, credentials of the environment."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer

from tests.pipeline.jetstream_support import Stream

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    urlopen(Request(f"{url}/bucket", method="PUT", headers={"Authorization": SIGNED})).close()
    yield url
    server.stop()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_stream_is_landed_in_a_bucket_each_message_once(
    stream: Stream, nats_url: str, endpoint: str
) -> None:
    environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "SEA_MQ_NATS_URL": nats_url}
    command = (
        "-m",
        "sea_mq_worker",
        "pipeline",
        "land",
        "--lake",
        "s3://bucket/a lake",
        "--stream",
        stream.name,
    )
    for stored in (20, 30):
        await stream.store(10 if stored > 20 else 20)
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, *command],
            env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert f"up to sequence {stored}" in ran.stdout
        options = {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
        for table in ("bronze", "silver"):
            found = await asyncio.to_thread(
                DeltaTable, f"s3://bucket/a lake/{table}", storage_options=options
            )
            assert found.to_pyarrow_table(columns=["seq"]).num_rows == stored
