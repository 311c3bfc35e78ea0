"""Settings come from the environment, then from the file that it names; what cannot be read is refused."""

from pathlib import Path

import pytest

from sea_mq_worker.settings import Settings, SettingsError, load_settings


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file, not there yet."""
    path = tmp_path / "worker.toml"
    monkeypatch.setenv("SEA_MQ_CONFIG", str(path))
    return path


def refusal(*needs: str) -> str:
    with pytest.raises(SettingsError) as refused:
        load_settings(needs=needs)
    return str(refused.value)


def test_without_any_there_are_the_defaults() -> None:
    assert load_settings() == Settings()


def test_the_environment_wins_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("context = 'crm'\ngrace_seconds = 5\ntracing = true\n")
    monkeypatch.setenv("SEA_MQ_GRACE_SECONDS", "7")
    found = load_settings()
    assert (found.context, found.grace_seconds, found.tracing) == ("crm", 7.0, True)


def test_a_line_end_that_a_value_was_stored_with_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEA_MQ_DATABASE_URL", "postgresql://worker:word@db/orders\n")
    monkeypatch.setenv("SEA_MQ_TRACING", "true\r")
    monkeypatch.setenv("SEA_MQ_LOG_LEVEL", "error\r")
    monkeypatch.setenv("SEA_MQ_CONTEXT", "crm\r")
    found = load_settings()
    assert found.database_url.get_secret_value() == "postgresql://worker:word@db/orders"
    assert (found.tracing, found.log_level, found.context) == (True, "error", "crm")


def test_a_file_of_windows_is_read(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfcontext = 'crm'\r\ngrace_seconds = 5\r\n")
    found = load_settings()
    assert (found.context, found.grace_seconds) == ("crm", 5.0)


@pytest.mark.parametrize(
    ("text", "consumers"), [("", []), ("A/b", [("A", "b")]), (" A/b, C/d ,", [("A", "b"), ("C", "d")])]
)
def test_consumers_are_separated_by_commas(
    text: str, consumers: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEA_MQ_CONSUMERS", text)
    assert [(one.stream, one.durable) for one in load_settings().consumers] == consumers


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        (b"context = ", "Invalid value"),
        (b"context = '\xff'", "can't decode"),
        (b"contxt = 'crm'", "worker.toml: contxt: there is no such setting; did you mean context?"),
        (b"consumers = [{s3cret = 1}]", "SEA_MQ_CONSUMERS: item 1: a key: is not a known key; remove it"),
        (b"'s3cret' = 1", "worker.toml: one key is not a setting; its name is not shown"),
        (b"[worker]", "worker.toml: worker: there is no such setting"),
    ],
)
def test_a_file_that_cannot_be_taken_is_refused(file: Path, content: bytes | None, why: str) -> None:
    if content is not None:
        file.write_bytes(content)
    assert why in refusal()


def test_a_folder_is_no_file(file: Path) -> None:
    file.mkdir()
    assert refusal() == f"SEA_MQ_CONFIG: {file}: Is a directory"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("CONTXT", "crm", "there is no such setting; did you mean SEA_MQ_CONTEXT?"),
        ("TRACING", "maybe", "expected true or false"),
        ("GRACE_SECONDS", "ten", "expected a number"),
        ("GRACE_SECONDS", "0", "expected at least 0.1"),
        ("ADMIN_PORT", "x", "expected a whole number"),
        ("ADMIN_PORT", "99999", "expected at most 65535"),
        ("STREAM_REPLICAS", "0", "expected at least 1"),
        ("STREAM_REPLICAS", "6", "expected at most 5"),
        ("OUTBOX_BYTES_MAX", str(2**63), "expected at most 4611686018427387904"),
        ("HANDLER_ACCEPT_STATUSES", "200,99999", "item 2: expected at most 599"),
        ("LOG_LEVEL", "loud", "expected 'debug', 'info', 'warning' or 'error'"),
        ("HANDLER_ACCEPT_STATUSES", "200,x", "item 2: expected a whole number"),
        ("CONSUMERS", "A/b,C c/d", "item 2: stream: expected a name without spaces, dots, slashes, * and >"),
        ("SOURCE", "/my shop", "expected visible ASCII without spaces; percent-encode everything else"),
        ("ADMIN_TOKEN_FILE", "", "is empty: give a path, or leave it out"),
        (
            "HANDLER_BATCH_URL",
            "http://handler/handle-batch",
            "requires handler_url, which receives the messages that are sent by themselves",
        ),
        ("OUTBOX_BACKOFF_SECONDS", "301", "must not be above outbox_backoff_max_seconds, which is 300"),
        ("INBOX_BACKOFF_SECONDS", "601", "must not be above inbox_backoff_max_seconds, which is 600"),
        (
            "OUTBOX_LEASE_SECONDS",
            "10",
            "must be at least outbox_publish_timeout_seconds + database_timeout_seconds, which is 25",
        ),
    ],
)
def test_an_error_says_what_the_setting_expects(
    key: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SEA_MQ_{key}", value)
    assert refusal() == f"SEA_MQ_{key}: {why}"


HANDLER = {"HANDLER_URL": "http://handler/handle"}
NO_URL = "expected an http:// or https:// URL without spaces and fragment, as http://host:8000/handle"
LINK_LOCAL = "is link-local or a cloud's metadata service; if intended, set handler_allow_link_local=true"
IDLE = "is empty and outbox_enabled is false, so the worker has nothing to do; set one of them"
TWICE = "has two durables named c: each name must be unique in a worker, also across streams"
BOTH = "requires {side}_tls_key_file, and the reverse; set both or neither"


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (
            HANDLER | {"HANDLER_BATCH_URL": HANDLER["HANDLER_URL"]},
            "HANDLER_BATCH_URL: must not be handler_url, which receives single messages",
        ),
        (HANDLER | {"HANDLER_BATCH_URL": "http://169.254.169.254/"}, f"HANDLER_BATCH_URL: {LINK_LOCAL}"),
        *(
            ({"HANDLER_URL": url}, f"HANDLER_URL: {NO_URL}")
            for url in ("ftp://h/", "http://h:x/", "http://h:0/")
        ),
        (
            {"HANDLER_URL": "http://u:word@h/"},
            "HANDLER_URL: must not hold a user or password; use handler_token_file",
        ),
        (
            {"DATABASE_URL": "postgresql://u:p@h/d", "DATABASE_PASSWORD_FILE": "/p"},
            "DATABASE_PASSWORD_FILE: excludes a password in database_url; remove one of them",
        ),
        (
            {"NATS_CREDS_FILE": "/c", "NATS_NKEY_SEED_FILE": "/n"},
            "NATS_CREDS_FILE: excludes nats_nkey_seed_file; set only one of them",
        ),
        ({"NATS_TLS_CERT_FILE": "/c"}, f"NATS_TLS_CERT_FILE: {BOTH.format(side='nats')}"),
        ({"HANDLER_TLS_KEY_FILE": "/k"}, f"HANDLER_TLS_CERT_FILE: {BOTH.format(side='handler')}"),
        ({"OUTBOX_ENABLED": "false", "CONSUMERS": ""}, f"CONSUMERS: {IDLE}"),
        ({"CONSUMERS": "A/c,B/d,B/c"}, f"CONSUMERS: {TWICE}"),
        (
            {"NATS_INBOX_PREFIX": "_INBOX.>"},
            "NATS_INBOX_PREFIX: expected tokens of letters, digits, - and _, separated by dots",
        ),
        ({"CONTEXT": "a.b"}, "CONTEXT: expected one lower-case token of letters, digits, - and _"),
    ],
)
def test_what_cannot_work_or_would_be_unsafe_is_refused(
    given: dict[str, str], refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in given.items():
        monkeypatch.setenv(f"SEA_MQ_{key}", value)
    assert refusal() == f"SEA_MQ_{refused}"


def named(text: str) -> list[str]:
    return [line.partition(":")[0] for line in text.splitlines()]


def test_all_that_is_wrong_by_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEA_MQ_ADMIN_PORT", "x")
    monkeypatch.setenv("SEA_MQ_DATABASE_URL", "mysql://h/d")
    monkeypatch.setenv("SEA_MQ_NATS_URL", "http://nats")
    assert named(refusal()) == ["SEA_MQ_DATABASE_URL", "SEA_MQ_NATS_URL", "SEA_MQ_ADMIN_PORT"]


def test_all_that_is_contradictory_or_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEA_MQ_ADMIN_HOST", "0.0.0.0")
    assert named(refusal("database_url", "nats_url")) == [
        "SEA_MQ_ADMIN_TOKEN_FILE",
        "SEA_MQ_DATABASE_URL",
        "SEA_MQ_NATS_URL",
    ]


LINKS = {
    "SEA_MQ_WORKER_SERVICE_HOST": "10.0.0.1",
    "SEA_MQ_WORKER_SERVICE_PORT": "8080",
    "SEA_MQ_WORKER_SERVICE_PORT_ADMIN": "8080",
    "SEA_MQ_WORKER_PORT": "tcp://10.0.0.1:8080",
    "SEA_MQ_WORKER_PORT_8080_TCP": "tcp://10.0.0.1:8080",
    "SEA_MQ_WORKER_PORT_8080_TCP_PROTO": "tcp",
    "SEA_MQ_WORKER_PORT_8080_TCP_PORT": "8080",
    "SEA_MQ_WORKER_PORT_8080_TCP_ADDR": "10.0.0.1",
    "SEA_MQ_ADMIN_PORT": "udp://10.0.0.1:53",
}


def test_variables_that_kubernetes_makes_for_services_are_no_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in LINKS.items():
        monkeypatch.setenv(name, value)
    assert load_settings() == Settings()


@pytest.mark.parametrize("name", ["SEA_MQ_WORKER_PORT", "SEA_MQ_PORT_8080", "SEA_MQ_DATABASE_URL_2"])
def test_another_unknown_variable_is_named_also_with_a_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "8080")
    assert refusal().startswith(f"{name}: there is no such setting")


def test_a_name_that_may_be_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEA_MQ_9f86d081884c7d659a2f", "x")
    assert refusal() == "one key is not a setting; its name is not shown because it may be a secret"


@pytest.mark.parametrize(
    ("name", "value"), [("OUTBOX_LINGER_SECONDS", "5 ms"), ("OUTBOX_AGE_MAX_SECONDS", "7 days")]
)
def test_a_setting_that_is_gone_is_refused_with_its_value_now(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SEA_MQ_{name}", "1")
    with pytest.raises(SettingsError, match=f"SEA_MQ_{name}: is no setting any more, and always {value}"):
        load_settings()
