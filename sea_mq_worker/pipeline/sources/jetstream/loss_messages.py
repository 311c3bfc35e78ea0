"""Errors for messages that were deleted before they were read; each names the remedy."""

from sea_mq_worker.adapters.nats.server_info import StreamInfo
from sea_mq_worker.pipeline.errors import DataLossError

_OR_CONTINUE = "or set the option failOnDataLoss=false to continue with the messages that remain"


def recreated(state: StreamInfo, created: str) -> DataLossError:
    """Return the error for a stream with another creation time."""
    return DataLossError(
        f"stream {state.name} was deleted and created again: the former at {created}, the present one at "
        f"{state.created}; unread messages of the former are lost. Start from the beginning "
        f"(a new checkpoint, no option created), {_OR_CONTINUE}"
    )


def removed(state: StreamInfo, first: int) -> DataLossError:
    """Return the error for a stream that begins after the first sequence to read."""
    return DataLossError(
        f"stream {state.name}: sequences {first} to {state.first_seq - 1} were removed, by its limits or "
        f"by a purge, before they were read; it begins at {state.first_seq} now. Read the events from the "
        f"outbox or its archive, raise max_age and max_bytes of the stream, {_OR_CONTINUE}"
    )


def rolled_back(state: StreamInfo, last: int) -> DataLossError:
    """Return the error for a stream that ends before a sequence it had assigned."""
    return DataLossError(
        f"stream {state.name} ends at sequence {state.last_seq}, before {last}: it was restored to an "
        "older state, or is another stream. Find the lost events with "
        "`python -m sea_mq_worker pipeline reconcile`, and start with a new checkpoint, "
        f"{_OR_CONTINUE}"
    )
