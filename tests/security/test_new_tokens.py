"""Tokens in files: a new one is taken up by a worker that runs, and a missing one opens nothing."""

from pathlib import Path

import pytest

from tests.support.handlers import Call, answer
from tests.support.site import Site
from tests.support.waiting import eventually


def with_old_token(file: Path) -> Path:
    file.write_text("old")
    return file


@pytest.mark.fault("S09")
async def test_the_handler_gets_the_new_token_of_the_file(shared: Site, tmp_path: Path) -> None:
    file = with_old_token(tmp_path / "token")
    shown = []

    async def guarded(call: Call, writer: object) -> None:
        shown.append(call.headers["authorization"])
        await answer(200 if shown[-1] == "Bearer new" else 401)(call, writer)

    shared.handler.default = guarded
    async with shared.worker(handler_token_file=file) as worker:
        await shared.send()
        await eventually(lambda: "Bearer old" in shown, what="the handler is called")
        file.unlink()
        await worker.answers(503, "SEA_MQ_HANDLER_TOKEN_FILE")
        file.write_text("new")
        await shared.answered()


@pytest.mark.fault("S10")
async def test_the_admin_pages_take_the_new_token_of_the_file(shared: Site, tmp_path: Path) -> None:
    file = with_old_token(tmp_path / "token")

    async def status(token: str) -> int:
        return (await worker.get("status", {"authorization": f"Bearer {token}"}))[0]

    async with shared.worker(admin_token_file=file) as worker:
        await worker.ready()
        assert (await status("old"), await status("new")) == (200, 401)
        file.unlink()
        await eventually(lambda: status("old"), until=lambda found: found == 503, what="nobody has access")
        assert (await worker.get("healthz"))[0] == 200
        file.write_text("new")
        assert (await status("old"), await status("new")) == (401, 200)
