"""Sequences of a batch's messages when other writers store messages in between."""

from collections.abc import Sequence
from typing import Any

import pytest

from sea_mq_worker.adapters.nats.publish.batch import BatchResult
from sea_mq_worker.adapters.nats.publish.ordered import OrderedPublisher
from sea_mq_worker.domain.encoding import EncodedMessage
from sea_mq_worker.domain.outcomes import Stored

DEADLINE = 1e9


class Stream:
    """Stores a batch with others' messages in between, also of the same publisher by another way."""

    def __init__(self, taken: Sequence[int]) -> None:
        self.ordered: OrderedPublisher
        self._taken = list(taken)
        self.asked = 0

    async def send(self, messages: Sequence[EncodedMessage], _deadline: float) -> Any:
        if self._taken[0] == 0:
            self.asked += 1
            return [Stored("S", seq, duplicate=True) for seq in self._taken[1:]]
        self.ordered.last_seq = self._taken[-1] - len(messages)
        last = self._taken[-1]
        self._taken.insert(0, 0)
        return BatchResult(sent=len(messages), stored=len(messages), stream="S", last_seq=last)


@pytest.mark.parametrize(
    ("places", "known"), [([21, 22, 26, 27], 20), ([22, 23, 24, 25], 20), ([21, 22, 23, 25], 20)]
)
async def test_sequences_are_asked_for_where_others_wrote_since_the_batch_began(
    places: list[int], known: int
) -> None:
    stream = Stream(places)
    stream.ordered = OrderedPublisher(stream, last_seq=known)  # type: ignore[arg-type]
    message = EncodedMessage(subject="s", head=b"", payload=b"", size=0, repeated=False)
    messages = [message] * len(places)
    outcomes = await stream.ordered.send(stream, messages, DEADLINE)
    assert [outcome.seq for outcome in outcomes if isinstance(outcome, Stored)] == places
    assert stream.asked == 1
