"""Every setting with its default and what is checked of it alone.

Every duration is in seconds, every size in bytes.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)

from sea_mq_worker.domain.addresses import nats_addresses, postgres_problem
from sea_mq_worker.domain.subjects import is_context

ENV_PREFIX = "SEA_MQ_"
CONFIG_VARIABLE = "SEA_MQ_CONFIG"
_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}")
_JETSTREAM_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_SOURCE = re.compile(r"[!-~]*")
_INBOX_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_YEAR_SECONDS = 31_536_000.0

Patience: TypeAlias = Annotated[float, Field(ge=0.1, le=_YEAR_SECONDS)]
"""Seconds that something is given to happen: below a tenth nothing ever would."""
Pause: TypeAlias = Annotated[float, Field(ge=0.001, le=_YEAR_SECONDS)]
"""Seconds between two things."""
Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]


def _no_blank(value: object) -> object:
    """An empty path would be this folder."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("is empty: give a path, or leave it out")
    return value


MaybePath: TypeAlias = Annotated[Path | None, BeforeValidator(_no_blank)]


def _jetstream_name(value: str) -> str:
    if not _JETSTREAM_NAME.fullmatch(value):
        raise ValueError("expected a name without spaces, dots, slashes, * and >")
    return value


class ConsumerSettings(BaseModel):
    """A durable consumer to take messages from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str
    durable: str

    @field_validator("stream", "durable")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return _jetstream_name(value)


class Settings(BaseModel):
    """All settings of the worker; field names are the keys, ``SEA_MQ_`` + upper case the variables."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    context: str = Field("sea", description="Own bounded context: the first token of every own subject.")
    source: str = Field("", description="CloudEvents source; `/{context}` unless set.")
    worker_name: str = Field(
        "", description="Name in leases, logs and connections; host and process unless set."
    )

    database_url: SecretStr = Field(
        SecretStr(""), description="PostgreSQL, as postgresql://user:password@host:5432/database."
    )
    database_schema: str = Field("public", description="Schema that holds the worker's tables.")
    database_pool_max: Annotated[int, Field(ge=1, le=1000)] = Field(
        6, description="Connections for the outbox and for the inbox, each."
    )
    database_timeout_seconds: Patience = Field(15.0, description="Longest that a statement may take.")

    database_pooler: bool = Field(
        False, description="A pooler, such as PgBouncer, is in between; excludes LISTEN."
    )

    nats_url: SecretStr = Field(
        SecretStr(""), description="NATS server or servers, comma-separated, as nats://host:4222."
    )
    nats_creds_file: MaybePath = Field(None, description="Credentials file (JWT and seed).")
    nats_nkey_seed_file: MaybePath = Field(None, description="NKey seed file.")
    nats_tls_ca_file: MaybePath = Field(None, description="Authority that signed the server's certificate.")
    nats_tls_cert_file: MaybePath = Field(None, description="Own certificate, for mutual TLS.")
    nats_tls_key_file: MaybePath = Field(None, description="Key of the own certificate.")
    nats_inbox_prefix: str = Field(
        "_INBOX",
        description="First tokens of the subjects that answers come to; each user's own.",
    )

    stream: str = Field("", description="Stream to publish to; `{CONTEXT}_EVENTS` unless set.")
    dlq_stream: str = Field("", description="Stream of dead letters; `{CONTEXT}_DLQ` unless set.")
    advisory_stream: str = Field(
        "", description="Stream that keeps MAX_DELIVERIES advisories; `{CONTEXT}_ADVISORIES` unless set."
    )
    streams_folder: MaybePath = Field(None, description="JetStream definitions; the bundled ones unless set.")
    stream_replicas: PositiveInt | None = Field(None, description="Replicas instead of the definitions' (3).")
    stream_max_bytes: PositiveInt | None = Field(
        None, description="Size limit of each stream instead of the definitions' (10 GiB)."
    )

    outbox_enabled: bool = Field(True, description="Publish the outbox.")
    outbox_publish_mode: Literal["auto", "pipeline", "fast", "atomic"] = Field(
        "auto", description="How batches are sent; `auto` takes what the stream reports to support."
    )
    outbox_batch_max: Annotated[int, Field(ge=1, le=1000)] = Field(1000, description="Events in a claim.")
    outbox_batch_bytes_max: PositiveInt = Field(
        8 * 2**20,
        description="Bytes of all events of a claim, headers and metadata included; one event may have more.",
    )
    outbox_bytes_max: PositiveInt = Field(
        32 * 2**20, description="Bytes of the events of all claims in hand; see Memory."
    )
    outbox_batches_max: Annotated[int, Field(ge=1, le=8)] = Field(4, description="Claims in hand, per lane.")
    outbox_lease_seconds: Patience = Field(60.0, description="Lease of a claim.")
    outbox_publish_timeout_seconds: Patience = Field(10.0, description="Deadline to publish a claim.")
    outbox_poll_seconds: Pause = Field(2.0, description="Longest wait between claims when idle.")
    outbox_notify: bool = Field(True, description="Wake up by LISTEN, where connections are direct.")
    outbox_backoff_seconds: Pause = Field(0.5, description="Bound of the first retry's delay.")
    outbox_backoff_max_seconds: Pause = Field(300.0, description="Bound of every retry's delay.")
    outbox_failures_max: Count = Field(10, description="Failed attempts after which an event is DEAD.")
    outbox_age_max_seconds: Patience = Field(
        604800.0, description="Age after its first attempt at which a failing event is DEAD."
    )
    outbox_dead_key: Literal["continue", "hold"] = Field(
        "continue", description="Whether a DEAD event lets the later ones of its ordering key go on."
    )

    outbox_partition_days: Annotated[int, Field(ge=1, le=365)] = Field(
        7, description="Days ahead that partitions are made for, where the outbox has some."
    )

    consumers: tuple[ConsumerSettings, ...] = Field(
        (ConsumerSettings(stream="VIBESPRO_EVENTS", durable="sea__from_vibespro"),),
        description="Durable consumers, comma-separated, each STREAM/durable; empty: no inbox.",
    )
    handler_url: str = Field("", description="Where messages are POSTed, as http://127.0.0.1:8000/handle.")
    handler_timeout_seconds: Patience = Field(60.0, description="Total deadline of one handler call.")
    handler_concurrency: Annotated[int, Field(ge=1, le=1000)] = Field(
        50, description="Calls at once, per consumer."
    )
    handler_accept_statuses: frozenset[int] = Field(
        frozenset({200, 409}), description="Statuses that mean: the effect is there."
    )
    handler_token_file: MaybePath = Field(None, description="File with a bearer token for the handler.")
    handler_allow_link_local: bool = Field(
        False, description="Let the handler be at a link-local address or where a cloud serves its metadata."
    )
    handler_keep_problem: bool = Field(
        False,
        description="Keep `type` and `title` of an answer's RFC 9457 problem details in errors; these must "
        "not repeat the payload.",
    )
    handler_tls_ca_file: MaybePath = Field(
        None, description="Authority that signed the handler's certificate; the system's unless set."
    )
    handler_tls_cert_file: MaybePath = Field(None, description="Own certificate, for mutual TLS.")
    handler_tls_key_file: MaybePath = Field(None, description="Key of the own certificate.")
    handler_slow_after: Count = Field(
        10, description="Different messages of one event type in a row without an effect that make it slow."
    )
    handler_slow_failures_per_second: Annotated[float, Field(ge=0.01, le=1000)] = Field(
        1.0, description="Failures of a slow event type that count, in a second; the others are asked again."
    )
    inbox_bytes_max: PositiveInt = Field(
        32 * 2**20, description="What the bodies of the messages in hand may come to, over all consumers."
    )
    inbox_lease_seconds: Patience = Field(60.0, description="Processing lease of a message.")
    inbox_attempts_max: Count = Field(15, description="Attempts after which a message is dead-lettered.")
    inbox_backoff_seconds: Pause = Field(1.0, description="Bound of the first redelivery's delay.")
    inbox_backoff_max_seconds: Pause = Field(600.0, description="Bound of every redelivery's delay.")

    admin_host: str = Field("127.0.0.1", description="Address of /healthz, /readyz, /metrics and the page.")
    admin_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8080, description="Port of the same; 0: any free."
    )
    admin_token_file: MaybePath = Field(None, description="File with the token that the admin pages ask for.")
    broken_seconds_max: Annotated[float, Field(ge=0, le=_YEAR_SECONDS)] = Field(
        0.0,
        description="How long a part may be paused by what somebody has to mend before the worker ends with "
        "exit code 3; 0: it waits for ever.",
    )
    grace_seconds: Patience = Field(30.0, description="How long a graceful stop may take.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged.")
    log_format: Literal["json", "text"] = Field(
        "json", description="One JSON object a line, or text for people."
    )
    pipeline_lake: str = Field(
        "", description="The lake of `pipeline` jobs: a folder, or an object store as s3://bucket/path."
    )
    tracing: bool = Field(False, description="OpenTelemetry spans, exported as OTEL_* variables say.")
    otlp_metrics: bool = Field(False, description="Metrics over OTLP, too, exported as OTEL_* variables say.")

    @field_validator("database_schema")
    @classmethod
    def _check_schema(cls, value: str) -> str:
        if not _SCHEMA.fullmatch(value):
            raise ValueError(
                "expected letters, digits and underscores, at most 63, and not pg_ at the beginning"
            )
        return value

    @field_validator("source")
    @classmethod
    def _check_source(cls, value: str) -> str:
        if not _SOURCE.fullmatch(value):
            raise ValueError("expected visible ASCII without spaces; percent-encode everything else")
        return value

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        problem = postgres_problem(text) if text else ""
        if problem:
            raise ValueError(problem)
        return value

    @field_validator("nats_url")
    @classmethod
    def _check_nats_url(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if text:
            nats_addresses(text)
        return value

    @field_validator("stream", "dlq_stream", "advisory_stream")
    @classmethod
    def _check_stream(cls, value: str) -> str:
        return _jetstream_name(value)

    @field_validator("nats_inbox_prefix")
    @classmethod
    def _check_inbox_prefix(cls, value: str) -> str:
        if not _INBOX_PREFIX.fullmatch(value):
            raise ValueError("expected tokens of letters, digits, - and _, separated by dots")
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
        upper = context.upper().replace("-", "_")
        derived = {
            "source": f"/{context}",
            "stream": f"{upper}_EVENTS",
            "dlq_stream": f"{upper}_DLQ",
            "advisory_stream": f"{upper}_ADVISORIES",
        }
        return data | {key: data.get(key) or value for key, value in derived.items()}
