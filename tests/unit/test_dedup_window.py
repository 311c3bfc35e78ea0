"""When a repeat is searched for in the stream, and up to where."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from sea_mq_worker.nats.message import SearchedId, SearchProgress, SearchResult, may_be_outside_window
from sea_mq_worker.outbox.search import StreamSearches
from sea_mq_worker.testing.events import RecordingEvents
from tests.support.builders import claimed_event

END = 9


class Stream:
    """A stream without the message, of which each search reads up to ``reads_to``."""

    def __init__(self, reads_to: int) -> None:
        self.reads_to = reads_to
        self.asked: list[SearchProgress | None] = []

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        self.asked += [each.looked for each in wanted]
        return {each.id: SearchProgress("made", through=self.reads_to, until=END) for each in wanted}


@pytest.mark.parametrize(
    ("seconds_ago", "sending_seconds", "doubtful"),
    [(0.0, 60.0, False), (7.0, 0.0, False), (7.0, 2.0, True), (9.0, 0.0, True), (-1.0, 0.0, True)],
)
def test_a_repeat_is_possibly_published_by_the_time_it_reaches_the_stream(
    seconds_ago: float, sending_seconds: float, *, doubtful: bool
) -> None:
    forgotten = may_be_outside_window(seconds_ago, window_seconds=10.0, sending_seconds=sending_seconds)
    assert forgotten is doubtful


@pytest.mark.parametrize(
    ("reads_to", "attempts", "until"),
    [
        pytest.param(5, 3, END, id="the next claim goes on"),
        pytest.param(5, 4, 0, id="another worker had it meanwhile"),
        pytest.param(END, 3, 0, id="it was not there, and may have been sent"),
    ],
)
async def test_what_may_have_been_sent_since_is_searched_for_to_the_new_end(
    reads_to: int, attempts: int, until: int
) -> None:
    stream: Any = Stream(reads_to)
    searches = StreamSearches(context="sea", events=RecordingEvents())
    event = claimed_event(attempts=2, attempted_seconds_ago=60.0)
    await searches.look_up(stream, [event])
    await searches.look_up(stream, [event._replace(attempts=attempts)])
    assert stream.asked == [None, SearchProgress("made", through=reads_to, until=until)]
