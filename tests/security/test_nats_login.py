"""Credentials in files: the right ones get in, and new ones are taken up without a restart."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.errors import ContractError
from sea_mq_worker.nats.connection import api
from tests.support.jetstream import connected
from tests.support.nats_jwt import Account, user_key
from tests.support.waiting import eventually

Login = tuple[str, Mapping[str, Any], str]
"""The option that names the file, what the server is configured with, and the file's content."""


def by_creds() -> Login:
    account = Account()
    return "creds_file", account.config, account.creds()


def by_nkey() -> Login:
    key = user_key()
    return "nkey_seed_file", {"authorization": {"users": [{"nkey": key.public}]}}, f"{key.seed.decode()}\n"


WAYS = pytest.mark.parametrize("login", [by_creds, by_nkey])


@pytest.mark.fault("S04")
@WAYS
async def test_a_file_that_changes_is_read_again_at_the_next_login(
    login: Callable[[], Login], tmp_path: Path
) -> None:
    """The server forgets the old key first; the connection comes back when the file has the new one."""
    (option, config, content), (_, new_config, new_content) = login(), login()
    file = tmp_path / "own"
    file.write_text(content)
    async with EmbeddedNats(tmp_path / "before", config=config) as before:
        port = before.port
        async with connected(before.url, **{option: str(file)}) as connection:
            reported: list[str] = []
            connection.listen(lambda event, text: reported.append(f"{event} {text}"))
            await before.stop()
            async with EmbeddedNats(tmp_path / "after", port=port, config=new_config) as after:
                violation = "authorization violation"
                await eventually(
                    lambda: any(violation in line.lower() for line in reported), what="it is refused"
                )
                assert not connection.is_connected
                with pytest.raises(ContractError, match="check its credentials") as refused:
                    async with connected(after.url, **{option: str(file)}):
                        pass
                file.write_text(new_content)
                await eventually(lambda: connection.is_connected, what="it is let in again")
                assert (await api(connection, "INFO"))["type"].endswith("account_info_response")
    secrets = [line for line in content.splitlines() if line.startswith(("SU", "ey"))]
    assert not any(secret in text for secret in secrets for text in (str(refused.value), *reported))


@pytest.mark.fault("S04")
async def test_credentials_that_expire_are_read_again_from_their_file(tmp_path: Path) -> None:
    account, file = Account(), tmp_path / "own"
    file.write_text(account.creds(seconds=2))
    async with (
        EmbeddedNats(tmp_path / "nats", config=account.config) as server,
        connected(server.url, creds_file=str(file)) as connection,
    ):
        reported: list[str] = []
        connection.listen(lambda event, text: reported.append(f"{event} {text}"))
        await eventually(lambda: "the server refuses the worker" in connection.trouble)
        file.write_text(account.creds())
        await eventually(lambda: connection.is_connected, what="it is let in again")
        assert any("expired" in line for line in reported)


@pytest.mark.fault("S04")
@WAYS
@pytest.mark.parametrize("hide", [Path.unlink, lambda file: file.write_text("-----BEGIN")])
async def test_a_file_that_is_gone_or_half_written_is_waited_for(
    login: Callable[[], Login], hide: Callable[[Path], object], tmp_path: Path
) -> None:
    """As while a mounted secret is replaced."""
    option, config, content = login()
    file = tmp_path / "own"
    file.write_text(content)
    async with (
        EmbeddedNats(tmp_path / "nats", config=config) as server,
        connected(server.url, **{option: str(file)}) as connection,
    ):
        reported: list[str] = []
        connection.listen(lambda _event, text: reported.append(text))
        hide(file)
        await server.stop()
        await server.start()
        await eventually(lambda: any(str(file) in text for text in reported), what="the file is missed")
        file.write_text(content)
        await eventually(lambda: connection.is_connected, what="it is back")


@pytest.mark.fault("S04")
async def test_a_file_without_credentials_is_named(tmp_path: Path) -> None:
    """Also one with a seed and no JWT, which nats-py would read for ever."""
    account = Account()
    only_seed = "-----BEGIN USER" + account.creds().partition("-----BEGIN USER")[2]
    file = tmp_path / "own"
    async with EmbeddedNats(tmp_path / "nats", config=account.config) as server:
        for content in ("", "no credentials", only_seed):
            file.write_text(content)
            with pytest.raises(ContractError, match=f"there is no .* in {file}"):
                async with connected(server.url, creds_file=str(file)):
                    pass
