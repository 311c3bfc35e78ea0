"""The options of the source ``jetstream``; none contains a secret."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.executor_settings import CONFIG, executor_settings
from sea_mq_worker.settings import Settings

ROWS_PER_PARTITION = 50_000

_NAMES = (
    *("stream", "created", "subject", "startSeq", "endSeq", "rowsPerPartition", "failOnDataLoss"),
    *("startingOffset", "maxMsgsPerTrigger", CONFIG),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JetStreamOptions:
    """The messages to read, and how to read them.

    Attributes:
        stream: name of the stream.
        created: required creation time of the stream, in the server's format, even if loss is allowed.
        subject: subject of the messages, with NATS wildcards; empty: all.
        start_seq: first sequence to read; None: the stream's first.
        end_seq: last sequence to read; None: the stream's last at planning.
        rows_per_partition: number of sequences that one task reads.
        fail_on_data_loss: raise an error if messages were deleted before they could be read.
        starting_offset: begin of a new streaming query: ``earliest``, ``latest`` or a sequence.
        rows_per_batch: maximum number of sequences in a micro-batch; None: no limit.
        access: options that locate the settings.
    """

    stream: str
    created: str | None = None
    subject: str = ""
    start_seq: int | None = None
    end_seq: int | None = None
    rows_per_partition: int = ROWS_PER_PARTITION
    fail_on_data_loss: bool = True
    starting_offset: Literal["earliest", "latest"] | int = "earliest"
    rows_per_batch: int | None = None
    access: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "JetStreamOptions":
        """Parse Spark's options, whose names ignore case.

        Raises:
            PipelineError: an option is unknown, wrong or missing.
        """
        options = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(options.keys() - {name.lower() for name in _NAMES}):
            raise PipelineError(
                f"jetstream: unknown option {unknown[0]}; expected one of {', '.join(_NAMES)}"
            )
        stream = options.get("stream", "").strip()
        if not stream or any(sign in stream for sign in " .*>"):
            raise PipelineError("jetstream: the option stream must be the name of a stream")
        subject = options.get("subject", "").strip()
        if any(map(str.isspace, subject)):
            raise PipelineError("jetstream: the option subject must be a subject without spaces")
        return cls(
            stream=stream,
            created=options.get("created") or None,
            subject=subject,
            start_seq=_number(options, "startSeq"),
            end_seq=_number(options, "endSeq", least=0),
            rows_per_partition=_number(options, "rowsPerPartition") or ROWS_PER_PARTITION,
            fail_on_data_loss=_flag(options, "failOnDataLoss"),
            starting_offset=_starting_offset(options),
            rows_per_batch=_number(options, "maxMsgsPerTrigger"),
            access={CONFIG: options[CONFIG]} if options.get(CONFIG) else {},
        )

    @property
    def one_stream(self) -> bool:
        """Whether a stream with another creation time is an error."""
        return self.fail_on_data_loss or self.created is not None

    def settings(self) -> Settings:
        """Load the settings in this process.

        Raises:
            SettingsError: a setting is missing or wrong in this process.
        """
        return executor_settings(self.access, needs=("nats_url",))


def _number(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise PipelineError(f"jetstream: the option {name} must be a whole number, at least {least}")
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "true").strip().lower()
    if text not in {"true", "false"}:
        raise PipelineError(f"jetstream: the option {name} must be true or false")
    return text == "true"


def _starting_offset(options: Mapping[str, str]) -> Literal["earliest", "latest"] | int:
    text = options.get("startingoffset", "earliest").strip().lower()
    if text in {"earliest", "latest"}:
        return "latest" if text == "latest" else "earliest"
    if not text.isdecimal() or int(text) < 1:
        raise PipelineError(
            "jetstream: the option startingOffset must be earliest, latest or a sequence from 1 on"
        )
    return int(text)
