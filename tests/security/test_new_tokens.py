"""Tokens in files: a new one is taken up by a worker that runs, and a missing one opens nothing."""

from pathlib import Path

import pytest

from tests.support.handlers import Call, answer
from tests.support.servers import Database
from tests.support.site import site
from tests.support.waiting import eventually


@pytest.mark.fault("S09")
async def test_the_handler_gets_the_new_token_of_the_file(
    database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    shown = []
    async with site(
        dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path, handler_token_file=file
    ) as place:

        async def guarded(call: Call, writer: object) -> None:
            shown.append(call.headers["authorization"])
            await answer(200 if shown[-1] == "Bearer new" else 401)(call, writer)

        place.handler.default = guarded
        async with place.worker() as worker:
            await place.send()
            await eventually(lambda: "Bearer old" in shown, what="the handler is called")
            file.unlink()
            await worker.answers(503, "SEA_MQ_HANDLER_TOKEN_FILE")
            file.write_text("new")
            await place.answered()


@pytest.mark.fault("S10")
async def test_the_admin_pages_take_the_new_token_of_the_file(
    database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    async def status(token: str) -> int:
        return (await worker._get("status", {"authorization": f"Bearer {token}"}))[0]

    async def is_shut() -> bool:
        return await status("old") == 503

    async with (
        site(dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path) as place,
        place.worker(admin_token_file=file) as worker,
    ):
        await worker.ready()
        assert (await status("old"), await status("new")) == (200, 401)
        file.unlink()
        await eventually(is_shut, what="nobody has access")
        assert (await worker._get("healthz"))[0] == 200
        file.write_text("new")
        assert (await status("old"), await status("new")) == (401, 200)
