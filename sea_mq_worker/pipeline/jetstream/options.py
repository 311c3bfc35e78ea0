"""The options of the source ``jetstream``; none contains a secret."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from sea_mq_worker.nats.info import StreamInfo
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.settings import Settings, config_file, load_settings

_OR_CONTINUE = "or set the option failOnDataLoss=false to continue with the messages that remain"


class JetStreamOptions(BaseModel):
    """The messages to read, and how to read them; Spark's names of the options are in camel case.

    Attributes:
        stream: name of the stream.
        created: required creation time of the stream, in the server's format; None: the present stream's.
        subject: subject of the messages, with NATS wildcards; empty: all.
        start_seq: first sequence to read; None: the stream's first message; ``latest``: only later messages.
        end_seq: last sequence to read; None: the stream's last at planning. A streaming query ignores it.
        rows_per_partition: number of sequences that one task reads.
        fail_on_data_loss: raise an error if messages were deleted before they could be read.
        max_msgs_per_trigger: maximum number of sequences in a micro-batch; None: no limit.
        config: path of the settings file on every node; None: settings from each node's environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str = Field(pattern=r"^[^ .*>]+$")
    created: str | None = None
    subject: str = Field("", pattern=r"^\S*$")
    start_seq: PositiveInt | Literal["latest"] | None = None
    end_seq: NonNegativeInt | None = None
    rows_per_partition: PositiveInt = 50_000
    fail_on_data_loss: bool = True
    max_msgs_per_trigger: PositiveInt | None = None
    config: str | None = Field(default_factory=config_file)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Parse Spark's options, whose names ignore case.

        Raises:
            PipelineError: an option is unknown, wrong or missing.
        """
        fields = {name.replace("_", ""): name for name in cls.model_fields}
        try:
            named = {fields.get(name.lower(), name): value for name, value in given.items()}
            return cls.model_validate({"config": None, **named})
        except ValidationError as error:
            wrong = error.errors(include_input=False)[0]
            raise PipelineError(f"jetstream: option {wrong['loc'][0]}: {wrong['msg']}") from None

    def settings(self) -> Settings:
        """Load the settings in this process."""
        return load_settings(needs=("nats_url",), config=self.config)

    def first_seq(self, state: StreamInfo) -> int | None:
        """Return the first sequence to read; None: the stream's first message, whichever that is."""
        return state.last_seq + 1 if self.start_seq == "latest" else self.start_seq

    def check(self, state: StreamInfo, *, created: str, last: int, first: int | None = None) -> None:
        """Check that a stream still is the one created at this time, and has these sequences.

        Raises:
            DataLossError: it was created again; or, unless loss is allowed, it lacks sequences.
        """
        if state.created != created:
            raise DataLossError(
                f"stream {state.name} was deleted and created again: the former at {created}, the present "
                f"one at {state.created}; unread messages of the former are lost. Start from the beginning "
                "(a new checkpoint, no option created)"
            )
        if self.fail_on_data_loss and last > state.last_seq:
            raise DataLossError(
                f"stream {state.name} ends at sequence {state.last_seq}, before {last}: it was restored to "
                "an older state, or is another stream. Find the lost events with "
                "`python -m sea_mq_worker pipeline reconcile`, and start with a new checkpoint, "
                f"{_OR_CONTINUE}"
            )
        if self.fail_on_data_loss and first is not None and first < state.first_seq:
            raise DataLossError(
                f"stream {state.name}: sequences {first} to {state.first_seq - 1} were removed, by its "
                f"limits or by a purge, before they were read; it begins at {state.first_seq} now. Read the "
                "events from the outbox or its archive, raise max_age and max_bytes of the stream, "
                f"{_OR_CONTINUE}"
            )
