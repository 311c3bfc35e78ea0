"""Read settings from ``SEA_MQ_*`` environment variables or a TOML file, and check how they fit together.

The environment overrides the file.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from sea_mq_worker.nats.subjects import events_stream, is_context, stream_prefix
from sea_mq_worker.postgres.url import plain_postgres_url, refused_variables, settings_in
from sea_mq_worker.runtime.addresses import (
    has_password,
    http_problem,
    is_loopback,
    is_metadata_host,
    nats_addresses,
    with_password_file,
)

ENV_PREFIX = "SEA_MQ_"
CONFIG_VARIABLE = "SEA_MQ_CONFIG"

# --- Error messages of settings; they quote no value, since a value may be a secret.

_NAME = re.compile(r"(?:[A-Za-z]+|[0-9]{1,5})(?:_+(?:[A-Za-z]+|[0-9]{1,5}))*")
_NAME_CHARACTERS_MAX = 60
_MESSAGES: Mapping[str, str] = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "extra_forbidden": "is not a known key; remove it",
    "finite_number": "expected a number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "greater_than_equal": "expected at least {ge}",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected {expected}",
    "missing": "is missing",
    "path_type": "expected a path",
    "string_type": "expected text",
}
"""Message by type of pydantic's error; any other type keeps pydantic's message."""


FIXED: Mapping[str, str] = {
    "advisory_stream": "{CONTEXT}_ADVISORIES",
    "outbox_batch_bytes_max": "8 MiB",
    "outbox_linger_seconds": "5 ms",
    "outbox_age_max_seconds": "7 days",
    "outbox_notify": "true without a pooler",
    "outbox_partition_days": "7",
    "handler_batch_bytes_max": "1 MiB",
    "inbox_in_flight_max": "four times SEA_MQ_HANDLER_CONCURRENCY, or less by the consumer's max_ack_pending",
}
"""Settings of 1.0 that the worker no longer reads, and the value that it uses instead."""


def unknown(name: str, known: Collection[str]) -> str:
    """Return the message for an unknown setting, with its fixed value or the most similar name."""
    if value := FIXED.get(name.lower().removeprefix(ENV_PREFIX.lower())):
        return f"{name}: is no setting any more, and always {value}; remove it"
    if not _is_showable(name):
        return "one key is not a setting; its name is not shown because it may be a secret"
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"{name}: there is no such setting{f'; did you mean {near[0]}?' if near else ''}"


def reason(problem: Mapping[str, Any]) -> str:
    """Return the message for one error of pydantic, with its position in a list."""
    text = str(problem["msg"]).removeprefix("Value error, ")
    if message := _MESSAGES.get(problem["type"]):
        text = message.format(**problem.get("ctx", {}))
    return ": ".join([*map(_position, problem["loc"][1:]), text])


def _position(part: str | int) -> str:
    if isinstance(part, int):
        return f"item {part + 1}"
    return part if _is_showable(part) else "a key"


def _is_showable(name: str) -> bool:
    """Return whether a name is words and short numbers, and no secret in the wrong place."""
    return len(name) <= _NAME_CHARACTERS_MAX and _NAME.fullmatch(name) is not None


# --- Settings: every key with its default and the checks of its own value.
#
# Durations are in seconds, sizes in bytes.

_YEAR_SECONDS = 31_536_000.0
_BATCHES_IN_FLIGHT = 2
_IN_FLIGHT_PER_CALL = 4
"""While the handler works on some messages, others are recorded, completed or fetched, in larger batches."""

TimeoutSeconds: TypeAlias = Annotated[float, Field(ge=0.1, le=_YEAR_SECONDS)]
"""A time limit of 0.1 seconds to a year; nothing could finish within less than 0.1 seconds."""
DelaySeconds: TypeAlias = Annotated[float, Field(ge=0.001, le=_YEAR_SECONDS)]
"""A delay of 0.001 seconds to a year."""
Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
Bytes: TypeAlias = Annotated[int, Field(ge=1, le=2**62)]
Status: TypeAlias = Annotated[int, Field(ge=200, le=599)]
"""A final status of HTTP."""


def _no_blank(value: object) -> object:
    """Reject an empty path, which would mean the current folder."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("is empty: give a path, or leave it out")
    return value


OptionalPath: TypeAlias = Annotated[Path | None, BeforeValidator(_no_blank)]


def _matches(pattern: str, expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


JetStreamName: TypeAlias = Annotated[
    str, _matches(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}", "a name without spaces, dots, slashes, * and >")
]
JetStreamDomain: TypeAlias = Annotated[
    str, _matches(r"[^\s.*>/\\\x00-\x1f\x7f]{0,255}", "a name without spaces, dots, slashes, * and >")
]
SchemaName: TypeAlias = Annotated[
    str,
    _matches(
        r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}",
        "at most 63 letters, digits and underscores, not beginning with pg_",
    ),
]
EventSource: TypeAlias = Annotated[
    str, _matches(r"[!-~]*", "visible ASCII without spaces; percent-encode everything else")
]
InboxPrefix: TypeAlias = Annotated[
    str,
    _matches(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", "tokens of letters, digits, - and _, separated by dots"),
]


class ConsumerSettings(BaseModel):
    """A durable consumer to take messages from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: JetStreamName
    durable: JetStreamName


class Settings(BaseModel):
    """All settings of the worker; field names are the keys, ``SEA_MQ_`` + upper case the variables."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, use_attribute_docstrings=True
    )

    context: str = "sea"
    """Bounded context of this worker: the first token of every subject it publishes to."""
    source: EventSource = ""
    """CloudEvents `source` of published events (default: `/{context}`)."""
    worker_name: str = ""
    """Name of this worker in leases, logs and connections (default: host and process id)."""

    database_url: SecretStr = SecretStr("")
    """URL of PostgreSQL, as postgresql://user:password@host:5432/database."""
    database_password_file: OptionalPath = None
    """File with the password of the database URL; read again at each connection."""
    database_schema: SchemaName = "public"
    """Schema that holds the worker's tables."""
    database_pool_max: Annotated[int, Field(ge=1, le=1000)] = 6
    """Maximum number of connections of each pool, outbox and inbox."""
    database_timeout_seconds: TimeoutSeconds = 15.0
    """Time limit of a statement."""

    database_pooler: bool = False
    """Connect through a pooler such as PgBouncer; switches LISTEN off."""

    nats_url: SecretStr = SecretStr("")
    """URLs of the NATS servers, as nats://host:4222."""
    nats_creds_file: OptionalPath = None
    """NATS credentials file (JWT and seed)."""
    nats_nkey_seed_file: OptionalPath = None
    """NATS NKey seed file."""
    nats_tls_ca_file: OptionalPath = None
    """CA certificate that signed the NATS server's certificate."""
    nats_tls_cert_file: OptionalPath = None
    """Client certificate for mutual TLS with NATS."""
    nats_tls_key_file: OptionalPath = None
    """Private key of the NATS client certificate."""
    nats_tls_handshake_first: bool = False
    """Begin each connection with TLS, as a NATS server with `handshake_first` requires."""
    nats_jetstream_domain: JetStreamDomain = ""
    """Domain of the JetStream to use, as at a leaf node (default: the connected server's own JetStream)."""
    nats_ignore_discovered_servers: bool = False
    """Connect to the servers of `SEA_MQ_NATS_URL` alone, and to none that the cluster names besides."""
    nats_inbox_prefix: InboxPrefix = "_INBOX"
    """Prefix of the subjects that receive replies; give each NATS user its own."""

    stream: JetStreamName = ""
    """Stream to publish to (default: `{CONTEXT}_EVENTS`)."""
    dlq_stream: JetStreamName = ""
    """Stream of dead letters (default: `{CONTEXT}_DLQ`)."""
    streams_folder: OptionalPath = None
    """Folder of JetStream definitions (default: they follow from `SEA_MQ_CONSUMERS`)."""
    stream_replicas: Annotated[int, Field(ge=1, le=5)] | None = None
    """Number of replicas of each stream (default: 3, from the definitions)."""
    stream_max_bytes: Bytes | None = None
    """Size limit of each stream (default: 10 GiB, from the definitions)."""

    outbox_enabled: bool = True
    """Publish the outbox."""
    outbox_publish_mode: Literal["auto", "pipeline", "fast", "atomic"] = "auto"
    """Publish mode of batches: `pipeline` has an acknowledgement for each message, `atomic` one for a batch.
    `auto` is `atomic` for many events of the same keys, where the stream allows it, else `pipeline`. Set
    `atomic` for a stream of one replica whose server has `sync_interval: always`. `fast` is deprecated and
    means `auto`.
    """
    outbox_batch_max: Annotated[int, Field(ge=1, le=1000)] = 1000
    """Maximum number of events in a claim."""
    outbox_bytes_max: Bytes = 32 * 2**20
    """Maximum size of all claims in flight; see Memory."""
    outbox_batches_max: Annotated[int, Field(ge=1, le=8)] = 4
    """Maximum number of claims in flight, per lane."""
    outbox_lease_seconds: TimeoutSeconds = 60.0
    """Lease of a claim."""
    outbox_publish_timeout_seconds: TimeoutSeconds = 10.0
    """Time limit to publish a claim."""
    outbox_poll_seconds: DelaySeconds = 2.0
    """Maximum wait between claims of an idle worker."""
    outbox_backoff_seconds: DelaySeconds = 0.5
    """Upper bound of the first retry's delay."""
    outbox_backoff_max_seconds: DelaySeconds = 300.0
    """Upper bound of every retry's delay."""
    outbox_failures_max: Count = 10
    """Number of failed attempts after which an event is DEAD."""
    outbox_dead_key: Literal["continue", "hold"] = "continue"
    """Events of a key behind a DEAD one: `continue` publishes them, `hold` keeps them back."""

    consumers: tuple[ConsumerSettings, ...] = (
        ConsumerSettings(stream="VIBESPRO_EVENTS", durable="sea__from_vibespro"),
    )
    """Durable consumers as STREAM/durable; empty: no inbox."""
    handler_url: str = ""
    """URL that receives messages by POST, as http://127.0.0.1:8000/handle."""
    handler_batch_url: str = ""
    """URL that receives several messages per POST, as http://127.0.0.1:8000/handle-batch; empty: one message
    per POST.
    """
    handler_batch_max: Annotated[int, Field(ge=2, le=1000)] = 100
    """Maximum number of messages in a batch for the handler."""
    handler_timeout_seconds: TimeoutSeconds = 60.0
    """Time limit of a handler call; a batch is one call."""
    handler_concurrency: Annotated[int, Field(ge=1, le=1000)] = 50
    """Maximum number of concurrent handler calls, per consumer."""
    handler_accept_statuses: Annotated[frozenset[Status], Field(min_length=1)] = frozenset({200, 409})
    """HTTP statuses that confirm the handler's effect."""
    handler_token_file: OptionalPath = None
    """File with the bearer token for the handler."""
    handler_allow_link_local: bool = False
    """Allow a handler at a link-local address or at a cloud's metadata address."""
    handler_keep_problem: bool = False
    """Copy `type` and `title` of RFC 9457 problem details, or `loc` and `type` of FastAPI's validation
    errors, into errors; the handler must put no payload into them.
    """
    handler_tls_ca_file: OptionalPath = None
    """CA that signed the handler's certificate (default: the system's authorities)."""
    handler_tls_cert_file: OptionalPath = None
    """Client certificate for mutual TLS with the handler."""
    handler_tls_key_file: OptionalPath = None
    """Private key of the handler's client certificate."""
    handler_slow_after: Count = 10
    """Number of consecutive messages without an effect after which an event type is slow."""
    handler_slow_failures_per_second: Annotated[float, Field(ge=0.01, le=1000)] = 1.0
    """Number of failures per second that count for a slow event type; further ones use up no attempt."""
    inbox_bytes_max: Bytes = 32 * 2**20
    """Maximum size of all in-flight messages, with their headers, over all consumers."""
    inbox_lease_seconds: TimeoutSeconds = 60.0
    """Processing lease of a message."""
    inbox_attempts_max: Count = 15
    """Number of attempts after which a message is dead-lettered."""
    inbox_backoff_seconds: DelaySeconds = 1.0
    """Upper bound of the first redelivery's delay."""
    inbox_backoff_max_seconds: DelaySeconds = 600.0
    """Upper bound of every redelivery's delay."""

    admin_host: str = "127.0.0.1"
    """Address that serves /healthz, /readyz, /metrics and the page."""
    admin_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of the admin address; 0: any free port."""
    admin_token_file: OptionalPath = None
    """File with the token that the admin pages require."""
    broken_seconds_max: Annotated[float, Field(ge=0, le=_YEAR_SECONDS)] = 0.0
    """Time limit of a wait for an operator's fix; then the worker exits with code 3. 0: no limit."""
    grace_seconds: TimeoutSeconds = 30.0
    """Time limit of a graceful stop."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level to log."""
    log_format: Literal["json", "text"] = "json"
    """Log format: one JSON object per line, or text for people."""
    pipeline_lake: str = ""
    """Lake of the `pipeline` jobs: a folder, or an object store as s3://bucket/path."""
    tracing: bool = False
    """Export OpenTelemetry spans, as the OTEL_* variables configure."""
    otlp_metrics: bool = False
    """Also export metrics over OTLP, as the OTEL_* variables configure."""

    @property
    def advisory_stream(self) -> str:
        """The stream that stores MAX_DELIVERIES advisories."""
        return f"{stream_prefix(self.context)}_ADVISORIES"

    @property
    def in_flight_max(self) -> int:
        """The bound of in-flight messages per consumer; its max_ack_pending limits them, too."""
        batches = _BATCHES_IN_FLIGHT * self.handler_batch_max if self.handler_batch_url else 0
        return max(batches, _IN_FLIGHT_PER_CALL * self.handler_concurrency)

    @property
    def connections_max(self) -> int:
        """The number of connections to PostgreSQL that a worker may open."""
        return self._connections(self.database_pool_max)

    @property
    def connections_min(self) -> int:
        """The number of connections without which a worker cannot start."""
        return self._connections(1)

    def _connections(self, pool: int) -> int:
        """Return the number for pools of this size: one more for upkeep, the session and LISTEN."""
        return pool * (self.outbox_enabled + bool(self.consumers)) + (1 if self.database_pooler else 3)

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        return SecretStr(plain_postgres_url(text)) if text else value

    @field_validator("nats_url")
    @classmethod
    def _check_nats_url(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if text:
            nats_addresses(text)
        return value

    @field_validator("consumers", mode="before")
    @classmethod
    def _split_consumers(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = [name.strip() for name in value.split(",") if name.strip()]
        if any(name.count("/") != 1 for name in names):
            raise ValueError("expected STREAM/durable, separated by commas")
        return [dict(zip(("stream", "durable"), name.split("/"), strict=True)) for name in names]

    @field_validator("handler_accept_statuses", mode="before")
    @classmethod
    def _split_statuses(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _fill_names(cls, data: dict[str, Any]) -> dict[str, Any]:
        context = str(data.get("context", "sea"))
        if not is_context(context):
            raise ValueError(
                f"{ENV_PREFIX}CONTEXT: expected one lower-case token of letters, digits, - and _"
            )
        prefix = stream_prefix(context)
        derived = {
            "source": f"/{context}",
            "stream": events_stream(context),
            "dlq_stream": f"{prefix}_DLQ",
        }
        return data | {key: data.get(key) or value for key, value in derived.items()}

    @model_validator(mode="before")
    @classmethod
    def _read_database_url(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Take settings from the URL, and put the password's file there: every connection reads it."""
        file, url = data.get("database_password_file"), data.get("database_url")
        if not url:
            return data
        plain = url.get_secret_value() if isinstance(url, SecretStr) else str(url).strip()
        named = {"database_url": with_password_file(plain, str(file))} if file else {}
        return settings_in(plain) | data | named


# --- Checks across settings; ``fields`` has checked each value by itself before.

_Contradiction: TypeAlias = tuple[str, str]
_BOUNDS = (
    ("outbox_backoff_seconds", "outbox_backoff_max_seconds"),
    ("inbox_backoff_seconds", "inbox_backoff_max_seconds"),
)
"""Settings, each with the one that bounds it."""


def contradictions(s: Settings) -> list[_Contradiction]:
    """Return the key and the error message of each setting that contradicts another."""
    return [*_bounds(s), *_handler(s, "handler_url"), *_handler(s, "handler_batch_url"), *_access(s)]


def _bounds(s: Settings) -> Iterator[_Contradiction]:
    least = s.outbox_publish_timeout_seconds + s.database_timeout_seconds
    if s.outbox_lease_seconds < least:
        text = "must be at least outbox_publish_timeout_seconds + database_timeout_seconds, which is"
        yield "outbox_lease_seconds", f"{text} {least:g}"
    for key, bound in _BOUNDS:
        if getattr(s, key) > getattr(s, bound):
            yield key, f"must not be above {bound}, which is {_number(getattr(s, bound))}"
    if not s.outbox_enabled and not s.consumers:
        text = "is empty and outbox_enabled is false, so the worker has nothing to do; set one of them"
        yield "consumers", text
    durables = [consumer.durable for consumer in s.consumers]
    for durable in sorted({name for name in durables if durables.count(name) > 1}):
        text = f"has two durables named {durable}: each name must be unique in a worker, also across streams"
        yield "consumers", text


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _handler(s: Settings, key: str) -> Iterator[_Contradiction]:
    url = getattr(s, key)
    if url and (problem := http_problem(url)):
        yield key, problem
    if not s.handler_allow_link_local and is_metadata_host(_host(url)):
        text = "is link-local or a cloud's metadata service; if intended, set handler_allow_link_local=true"
        yield key, text


def _access(s: Settings) -> Iterator[_Contradiction]:
    if s.handler_batch_url and s.handler_batch_url == s.handler_url:
        yield "handler_batch_url", "must not be handler_url, which receives single messages"
    if s.handler_batch_url and not s.handler_url:
        text = "requires handler_url, which receives the messages that are sent by themselves"
        yield "handler_batch_url", text
    if not is_loopback(s.admin_host) and s.admin_token_file is None:
        yield "admin_token_file", "is required where admin_host is not a loopback address"
    for side in ("nats", "handler"):
        cert, key = f"{side}_tls_cert_file", f"{side}_tls_key_file"
        if (getattr(s, cert) is None) != (getattr(s, key) is None):
            yield cert, f"requires {key}, and the reverse; set both or neither"
    if s.database_password_file and has_password(s.database_url.get_secret_value()):
        yield "database_password_file", "excludes a password in database_url; remove one of them"
    if s.nats_creds_file and s.nats_nkey_seed_file:
        yield "nats_creds_file", "excludes nats_nkey_seed_file; set only one of them"


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


__all__ = [
    "CONFIG_VARIABLE",
    "ENV_PREFIX",
    "ConsumerSettings",
    "Settings",
    "SettingsError",
    "check_settings",
    "load_settings",
    "unread_env_file",
]

_REQUIRED = "is required; set it (`python -m sea_mq_worker dev` starts its own servers and needs no settings)"
_LINK = re.compile(r"(?:tcp|udp|sctp)://")
_LINK_NAME = re.compile(
    r"_SERVICE_(?:HOST|PORT(?:_\w+)?)$|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?$"
)
"""Values and names of the variables that Kubernetes makes for each Service (`enableServiceLinks`)."""
_ASSIGNMENT = re.compile(rf"\s*(?:export\s+)?({ENV_PREFIX}\w+)\s*=")
_VARIABLES = {key: f"{ENV_PREFIX}{key.upper()}" for key in Settings.model_fields}


class SettingsError(Exception):
    """Settings are wrong, missing or contradictory; the text has one line per key and names the key."""


def config_file() -> str | None:
    """Return the path of this process's settings file; None: there is none."""
    return os.environ.get(CONFIG_VARIABLE) or None


def load_settings(*, needs: Collection[str] = (), config: str | None = None) -> Settings:
    """Read and check the settings.

    Args:
        needs: keys that the command requires.
        config: path of the settings file; by default this process's.

    Raises:
        SettingsError: names every key that is wrong or missing.
    """
    _refuse_unknown_variables()
    try:
        settings = Settings.model_validate(_file(config) | _environment())
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(problem) for problem in error.errors())) from None
    check_settings(settings, needs=needs)
    return settings


def check_settings(settings: Settings, *, needs: Collection[str]) -> None:
    """Check that settings fit together, and that the needed keys are set.

    Raises:
        SettingsError: names every key that contradicts another or is missing.
    """
    missing = [(key, _REQUIRED) for key in needs if not getattr(settings, key)]
    if settings.database_url and (demands := list(refused_variables(os.environ))):
        raise SettingsError("\n".join(demands))
    if problems := contradictions(settings) + missing:
        raise SettingsError("\n".join(_line(key, text) for key, text in problems))


def unread_env_file() -> str:
    """Return a hint if a file `.env` here holds variables that the environment lacks; empty otherwise."""
    try:
        lines = Path(".env").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    named = [found[1] for line in lines if (found := _ASSIGNMENT.match(line))]
    if all(name in os.environ for name in named):
        return ""
    return "the file .env is not read; load it into the environment: set -a; . ./.env; set +a"


def _line(key: str, text: str) -> str:
    return f"{ENV_PREFIX}{key.upper()}: {text}"


def _file(given: str | None) -> dict[str, Any]:
    path = given or config_file()
    if not path:
        return {}
    try:
        entries = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {path}: {error}") from None
    if unknown_keys := sorted(entries.keys() - _VARIABLES.keys()):
        lines = (f"{CONFIG_VARIABLE}: {path}: {unknown(key, _VARIABLES)}" for key in unknown_keys)
        raise SettingsError("\n".join(lines))
    return entries


def _environment() -> dict[str, str]:
    given = ((key, os.environ.get(name)) for key, name in _VARIABLES.items())
    return {key: value.strip() for key, value in given if value is not None and not _LINK.match(value)}


def _refuse_unknown_variables() -> None:
    """Reject a misspelt variable, which would otherwise leave the default in force silently."""
    ours = {name for name in os.environ if name.startswith(ENV_PREFIX) and "_TEST_" not in name}
    known = {CONFIG_VARIABLE, *_VARIABLES.values()}
    if unknown_names := sorted(name for name in ours - known if not _is_service_link(name)):
        raise SettingsError("\n".join(unknown(name, known) for name in unknown_names))


def _is_service_link(name: str) -> bool:
    """Return whether Kubernetes made the variable, for a Service such as `sea-mq-worker` in the namespace."""
    return bool(_LINK_NAME.search(name) or (name.endswith("_PORT") and _LINK.match(os.environ[name])))


def _explain(problem: Any) -> str:
    return _line(problem["loc"][0], reason(problem)) if problem["loc"] else reason(problem)
