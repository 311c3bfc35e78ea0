"""When a stream no longer holds what was to be read: said, with what to do, and never skipped in silence."""

from sea_mq_worker.adapters.nats.server_info import StreamInfo
from sea_mq_worker.pipeline.errors import DataLossError

_OR_GO_ON = "or set the option failOnDataLoss=false to go on with what is there"


def recreated(state: StreamInfo, created: str) -> DataLossError:
    """The stream has another creation time."""
    return DataLossError(
        f"stream {state.name} was deleted and made again: it was created at {created}, this one at "
        f"{state.created}; what the former held and was not read is gone. Start anew from its beginning "
        f"(a new checkpoint, no option created), {_OR_GO_ON}"
    )


def removed(state: StreamInfo, first: int) -> DataLossError:
    """The head of the stream is behind what was to be read."""
    return DataLossError(
        f"stream {state.name}: sequences {first} to {state.first_seq - 1} were removed, by its limits or "
        f"by a purge, before they were read; it begins at {state.first_seq} now. Read what is kept elsewhere "
        f"(the outbox or its archive), raise max_age and max_bytes of the stream, {_OR_GO_ON}"
    )


def rolled_back(state: StreamInfo, last: int) -> DataLossError:
    """The stream ends before a sequence that it had given."""
    return DataLossError(
        f"stream {state.name} ends at sequence {state.last_seq}, before {last}: it was restored to an "
        "older state, or is not the stream that was meant. Find what it lost with "
        "`python -m sea_mq_worker pipeline reconcile`, and start anew (a new checkpoint), "
        f"{_OR_GO_ON}"
    )
