"""Settings: every key with its default and the checks of its own value.

Durations are in seconds, sizes in bytes.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from sea_mq_worker.domain.addresses import nats_addresses, with_password_file
from sea_mq_worker.domain.subjects import events_stream, is_context, stream_prefix
from sea_mq_worker.settings.postgres_url import plain_postgres_url, settings_in

ENV_PREFIX = "SEA_MQ_"
CONFIG_VARIABLE = "SEA_MQ_CONFIG"
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
    advisory_stream: JetStreamName = ""
    """Stream that stores MAX_DELIVERIES advisories (default: `{CONTEXT}_ADVISORIES`)."""
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
    outbox_batch_bytes_max: Bytes = 8 * 2**20
    """Maximum size of a claim, headers included; a larger event is claimed alone."""
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
    outbox_linger_seconds: DelaySeconds = 0.005
    """Pause between two claims in which events gather; see Linger."""
    outbox_notify: bool = True
    """Wake up by LISTEN; has no effect with a pooler."""
    outbox_backoff_seconds: DelaySeconds = 0.5
    """Upper bound of the first retry's delay."""
    outbox_backoff_max_seconds: DelaySeconds = 300.0
    """Upper bound of every retry's delay."""
    outbox_failures_max: Count = 10
    """Number of failed attempts after which an event is DEAD."""
    outbox_age_max_seconds: TimeoutSeconds = 604800.0
    """Time limit of a failing event from its first attempt; then it is DEAD."""
    outbox_dead_key: Literal["continue", "hold"] = "continue"
    """Events of a key behind a DEAD one: `continue` publishes them, `hold` keeps them back."""

    outbox_partition_days: Annotated[int, Field(ge=1, le=365)] = 7
    """Number of days ahead to create partitions for, if the outbox has any."""

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
    handler_batch_bytes_max: Bytes = 2**20
    """Maximum size of a batch's body; a larger message is sent by itself."""
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
    inbox_in_flight_max: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Maximum number of in-flight messages, per consumer; the consumer's max_ack_pending limits them, too
    (default: four times `SEA_MQ_HANDLER_CONCURRENCY`; with a batch URL at least twice
    `SEA_MQ_HANDLER_BATCH_MAX`).
    """
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
    def in_flight_max(self) -> int:
        """The bound of in-flight messages per consumer, with its default filled in."""
        batches = _BATCHES_IN_FLIGHT * self.handler_batch_max if self.handler_batch_url else 0
        return self.inbox_in_flight_max or max(batches, _IN_FLIGHT_PER_CALL * self.handler_concurrency)

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
            "advisory_stream": f"{prefix}_ADVISORIES",
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
