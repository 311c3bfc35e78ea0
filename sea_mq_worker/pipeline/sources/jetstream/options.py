"""The options of the source ``jetstream``; none of them holds a secret."""

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
    """What to read, and how.

    Attributes:
        stream: its name.
        created: the creation time that it must have, as the server tells it, whatever loss is allowed; any
            unless given.
        subject: only messages on it; wildcards as in NATS.
        start_seq: the first sequence to read; the first there is unless given.
        end_seq: the last sequence to read; the last there is when the read is planned unless given.
        rows_per_partition: sequences that one task reads.
        fail_on_data_loss: refuse to go on where messages are gone that were to be read.
        starting_offset: where a new streaming query begins: ``earliest``, ``latest`` or a sequence.
        rows_per_batch: the most sequences in a micro-batch; all there are unless given.
        access: where the settings are.
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
        """Read Spark's options, whose names have no case.

        Raises:
            PipelineError: one is unknown, wrong or missing.
        """
        options = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(options.keys() - {name.lower() for name in _NAMES}):
            raise PipelineError(f"jetstream: there is no option {unknown[0]}; there are {', '.join(_NAMES)}")
        stream = options.get("stream", "").strip()
        if not stream or any(sign in stream for sign in " .*>"):
            raise PipelineError("jetstream: the option stream has to be the name of a stream")
        subject = options.get("subject", "").strip()
        if any(map(str.isspace, subject)):
            raise PipelineError("jetstream: the option subject has to be a subject, which has no spaces")
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
        """A stream of another creation time is an error, never a place to go on."""
        return self.fail_on_data_loss or self.created is not None

    def settings(self) -> Settings:
        """Load the settings of the process that this runs in.

        Raises:
            SettingsError: one is missing or wrong here.
        """
        return executor_settings(self.access, needs=("nats_url",))


def _number(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise PipelineError(f"jetstream: the option {name} has to be a whole number from {least} on")
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "true").strip().lower()
    if text not in {"true", "false"}:
        raise PipelineError(f"jetstream: the option {name} has to be true or false")
    return text == "true"


def _starting_offset(options: Mapping[str, str]) -> Literal["earliest", "latest"] | int:
    text = options.get("startingoffset", "earliest").strip().lower()
    if text in {"earliest", "latest"}:
        return "latest" if text == "latest" else "earliest"
    if not text.isdecimal() or int(text) < 1:
        raise PipelineError(
            "jetstream: the option startingOffset has to be earliest, latest or a sequence from 1 on"
        )
    return int(text)
