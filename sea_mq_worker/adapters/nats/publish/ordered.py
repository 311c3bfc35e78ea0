"""Publishing so that nothing is stored behind a message that was not.

Chunks go as batches; whatever a batch leaves in doubt is sent again, one message after the other, under
the same ids. The first that is not stored ends the call.
"""

import asyncio
from collections.abc import Sequence

from sea_mq_worker.adapters.nats.publish.batch import BatchResult, BatchSender, chunks
from sea_mq_worker.adapters.nats.publish.pipelined import PipelinedPublisher
from sea_mq_worker.domain.encoding import EncodedMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Stored, Unknown, Unsent

_BEHIND = Unsent("held back behind a message that was not stored")


class OrderedPublisher:
    """Publishes in order by batches; one call at a time.

    Attributes:
        last_seq: the stream's last sequence as far as this publisher knows.
        mixed_at: when a batch last shared its run of sequences with other writers, in the loop's time.
        disabled: the stream has refused the kind of batch as such.
    """

    def __init__(self, pipeline: PipelinedPublisher, *, last_seq: int) -> None:
        self.last_seq = last_seq
        self.mixed_at = float("-inf")
        self.disabled = False
        self._pipeline = pipeline
        self._turn = asyncio.Lock()

    async def send(
        self, batcher: BatchSender, messages: Sequence[EncodedMessage], deadline: float
    ) -> list[PublishOutcome]:
        """Make one attempt for each message, as far as they get."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            return [Unsent("the deadline passed before its turn")] * len(messages)
        try:
            outcomes: list[PublishOutcome] = []
            for chunk in chunks(messages):
                outcomes += await self._chunk(batcher, chunk, deadline)
                if not _all_stored(outcomes):
                    break
        finally:
            self._turn.release()
        return outcomes + [_BEHIND] * (len(messages) - len(outcomes))

    async def _chunk(
        self, batcher: BatchSender, chunk: Sequence[EncodedMessage], deadline: float
    ) -> list[PublishOutcome]:
        if len(chunk) == 1:
            return await self._one_by_one(chunk, deadline)
        known = self.last_seq  # before the batch: what others store meanwhile is not known to lie before it
        result = await batcher.send(chunk, deadline)
        self.disabled = self.disabled or result.disabled
        outcomes = await self._numbered(chunk[: result.stored], result, known, deadline)
        if result.stored == len(chunk) or not _all_stored(outcomes):
            return outcomes
        rest = await self._one_by_one(chunk[result.stored :], deadline)
        doubt, doubtful = Unknown(result.trouble), result.sent - result.stored
        return outcomes + [
            doubt if index < doubtful and isinstance(outcome, Unsent) else outcome
            for index, outcome in enumerate(rest)
        ]

    async def _numbered(
        self, stored: Sequence[EncodedMessage], result: BatchResult, known: int, deadline: float
    ) -> list[PublishOutcome]:
        """Give stored messages their sequences: by counting where the run is unbroken, else by asking.

        It is where nothing else was stored since ``known``, the stream's last sequence before. A message is
        asked for by sending it again: the stream knows the id and answers with the first sequence.
        """
        if not stored:
            return []
        self.last_seq = result.last_seq
        first = result.last_seq - len(stored) + 1
        stream = result.stream
        if result.unbroken or first == known + 1:
            return [Stored(stream, seq) for seq in range(first, result.last_seq + 1)]
        self.mixed_at = asyncio.get_running_loop().time()
        answers = await self._pipeline.send(stored, deadline)
        return [
            Stored(answer.stream, answer.seq, duplicate=answer.duplicate and answer.seq <= known)
            if isinstance(answer, Stored)
            else Unknown(answer.reason)
            for answer in answers
        ]

    async def _one_by_one(self, messages: Sequence[EncodedMessage], deadline: float) -> list[PublishOutcome]:
        outcomes: list[PublishOutcome] = []
        for message in messages:
            outcomes += await self._pipeline.send([message], deadline)
            if not isinstance(outcomes[-1], Stored):
                break
        stored = [outcome.seq for outcome in outcomes if isinstance(outcome, Stored)]
        self.last_seq = max([self.last_seq, *stored])
        return outcomes + [_BEHIND] * (len(messages) - len(outcomes))


def _all_stored(outcomes: Sequence[PublishOutcome]) -> bool:
    return all(isinstance(outcome, Stored) for outcome in outcomes)
