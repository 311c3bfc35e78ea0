"""Plain text and open files are told at the start; what cannot be a secret is refused."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from sea_mq_worker.admin.server import AdminServer
from sea_mq_worker.connections import exposures, read_secret
from sea_mq_worker.settings import Settings, SettingsError, load_settings
from tests.support.servers import Database
from tests.support.waiting import eventually
from tests.support.worker import deployment, running

HERE = {
    "database_url": "postgresql://sea@127.0.0.1/sea",
    "nats_url": "nats://127.0.0.1:4222,nats://localhost:4223",
    "handler_url": "http://[::1]:8000/handle",
}


def reported(**given: Any) -> dict[str, str]:
    values = {**HERE, **given}
    for key in ("database_url", "nats_url"):
        values[key] = SecretStr(values[key])
    return dict(exposures(Settings(**values)))


@pytest.mark.fault("S03")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"database_url": "postgresql://sea@db.internal/sea"}, "DATABASE_URL"),
        ({"database_url": "postgresql://sea@10.0.0.1/sea?sslmode=prefer"}, "DATABASE_URL"),
        ({"database_url": "postgresql://h/sea?ssl=false"}, "DATABASE_URL"),
        ({"database_url": "postgresql://sea@127.0.0.1,db.internal/sea"}, "DATABASE_URL"),
        ({"database_url": "postgresql:///sea?host=db.internal"}, "DATABASE_URL"),
        ({"nats_url": "nats://127.0.0.1,nats://b.internal"}, "NATS_URL"),
        ({"handler_url": "http://handler:8000/handle"}, "HANDLER_URL"),
        ({"handler_batch_url": "http://handler:8000/handle-batch"}, "HANDLER_BATCH_URL"),
    ],
)
def test_plain_text_across_a_network_is_reported(given: dict[str, str], named: str) -> None:
    assert reported(**given)["plaintext_connection"].startswith(f"SEA_MQ_{named}: use ")


@pytest.mark.fault("S03")
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"database_url": "postgresql://sea@db.internal/sea?sslmode=verify-full"},
        {"database_url": "postgresql:///sea?host=/var/run/postgresql"},
        {"nats_url": "tls://a.internal:4222,tls://b.internal:4222"},
        {"nats_url": "nats://a.internal:4222", "nats_tls_ca_file": Path("ca.pem")},
        {"handler_url": "https://handler/handle"},
        {"handler_url": "http://handler/handle", "consumers": ()},
    ],
)
def test_local_and_encrypted_connections_are_not_reported(given: dict[str, Any]) -> None:
    assert reported(**given) == {}


@pytest.mark.fault("S03")
def test_the_environments_own_mode_of_postgresql_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert reported(database_url="postgresql://sea@db.internal/sea") == {}


@pytest.mark.fault("S04")
@pytest.mark.parametrize(("mode", "exposed"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
@pytest.mark.parametrize(
    "key",
    [
        *("nats_creds_file", "nats_nkey_seed_file", "handler_token_file", "admin_token_file"),
        *("nats_tls_key_file", "handler_tls_key_file", "database_password_file"),
    ],
)
def test_a_world_readable_secret_is_reported(key: str, mode: int, *, exposed: bool, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("secret")
    file.chmod(mode)
    given = {key: file}
    if key.endswith("key_file"):
        given[key.replace("key_file", "cert_file")] = file
    notices = reported(**given)
    assert ("secret_file_exposed" in notices) is exposed
    assert not exposed or f"SEA_MQ_{key.upper()} ({file})" in notices["secret_file_exposed"]


@pytest.mark.fault("S04")
def test_a_world_readable_settings_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "worker.toml"
    monkeypatch.setenv("SEA_MQ_CONFIG", str(file))
    assert reported() == {}, "whoever reads the file reports that it is not there"
    file.touch(mode=0o604)
    assert f"SEA_MQ_CONFIG ({file})" in reported()["secret_file_exposed"]


@pytest.mark.fault("S03")
@pytest.mark.fault("S04")
async def test_the_worker_reports_differences_at_its_start_and_continues(
    database: Database, names: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("token")
    token.chmod(stat.S_IRUSR | stat.S_IROTH)
    target = deployment(
        context=names,
        database_url=database.dsn,
        nats_url="nats://no.such.host.invalid:4222",
        handler_url="http://127.0.0.1:1/",
        admin_token_file=token,
    )
    async with running(target, tmp_path / "log") as worker:
        wanted = {"plaintext_connection", "secret_file_exposed", "admin_listening"}
        await eventually(lambda: wanted <= set(worker.events()), within=20)


@pytest.mark.fault("S01")
@pytest.mark.fault("S10")
@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe\x00"])
def test_a_file_without_a_secret_is_refused(content: bytes, tmp_path: Path) -> None:
    """An empty token would let everybody in."""
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=f"SEA_MQ_ADMIN_TOKEN_FILE: .*{file}"):
        read_secret(file, key="admin_token_file")


@pytest.mark.fault("S10")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "worker.internal", ""])
def test_the_admin_pages_leave_the_machine_only_with_a_token(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SEA_MQ_ADMIN_HOST", host)
    with pytest.raises(SettingsError, match="SEA_MQ_ADMIN_TOKEN_FILE: is required"):
        load_settings()
    monkeypatch.setenv("SEA_MQ_ADMIN_TOKEN_FILE", str(tmp_path / "token"))
    assert load_settings().admin_host == host


@pytest.mark.fault("S10")
async def test_by_default_nobody_else_can_connect() -> None:
    """127.0.0.2 is this machine too, and not the address that is listened on."""
    admin = AdminServer(host=Settings().admin_host, port=0)
    await admin.start()
    _, writer = await asyncio.open_connection("127.0.0.1", admin.port)
    writer.close()
    with pytest.raises(OSError, match=r"Connect call failed|^$"):
        await asyncio.wait_for(asyncio.open_connection("127.0.0.2", admin.port), 2.0)
    await admin.close()


@pytest.mark.fault("S07")
@pytest.mark.parametrize("name", ["A B", "A.>", "*", "A/B", "A\r\nPUB x 0\r\n", "A\x00", "a" * 256])
@pytest.mark.parametrize("key", ["stream", "dlq_stream", "consumers"])
def test_no_name_of_a_stream_or_consumer_becomes_a_subject_or_a_command(key: str, name: str) -> None:
    given: dict[str, Any] = {key: ({"stream": "S", "durable": name},) if key == "consumers" else name}
    with pytest.raises(ValidationError, match=r"expected a name without spaces"):
        Settings(**given)
