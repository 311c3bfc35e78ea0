"""The documentation as a site: each link leads somewhere, and the search knows every page."""

import asyncio
import sys
from pathlib import Path

import httpx2

from sea_mq_worker.dev.servers import free_port
from tests.support.documents import ROOT
from tests.support.waiting import eventually

START_SECONDS = 60


async def test_the_site_is_served_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    log = tmp_path / "log"
    with log.open("w") as said:
        serve = [sys.executable, "-m", "mkdocs", "serve", "--strict", "--dev-addr", address]
        served = await asyncio.create_subprocess_exec(*serve, cwd=ROOT, stdout=said, stderr=said)
    try:
        await eventually(
            lambda: served.returncode is not None or "Serving on" in log.read_text(),
            within=START_SECONDS, what="it is built",
        )  # fmt: skip
        assert served.returncode is None, log.read_text()
        async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
            found = (await client.get(f"http://{address}/search/search_index.json")).json()["docs"]
    finally:
        if served.returncode is None:
            served.terminate()
        await served.wait()
    assert any("sixty seconds" in page["title"].lower() for page in found)
    pages = {page["location"].partition("#")[0] for page in found}
    docs = ROOT / "docs"
    written = (document.relative_to(docs).with_suffix("") for document in docs.rglob("*.md"))
    assert pages == {"", *(f"{document.as_posix()}/" for document in written)}
