"""Ordered publishing: no message is stored after one that is not.

Each chunk is one batch. Messages that the batch did not certainly store are sent again one by one, under the
same ids. The first message that is not stored ends the call. For example, with four events:

    batch A B C D   its acknowledgement does not arrive: all four are possibly published
    send A again    Stored: the stream knows the id, because the batch had stored A
    send B again    FailedTransiently: the call ends
    C, D            Unknown, because the batch sent them; Unsent if it had not
"""

import asyncio
from collections.abc import Sequence

from sea_mq_worker.adapters.nats.publish.batch import BatchResult, BatchSender
from sea_mq_worker.adapters.nats.publish.hpub import split
from sea_mq_worker.adapters.nats.publish.pipelined import PipelinedPublisher
from sea_mq_worker.domain.encoding import EncodedMessage
from sea_mq_worker.domain.outcomes import PublishOutcome, Stored, Unknown, Unsent

_BATCH_MESSAGES = 1000
"""Cap on a batch; the server allows that many in an atomic one."""
HELD_BACK = Unsent("held back behind a message that was not stored")


class OrderedPublisher:
    """Publishes in order by batches; one call at a time.

    Attributes:
        last_seq: the stream's last sequence that this publisher knows.
        interleaved_at: when another writer last stored messages between those of a batch, in the loop's time.
        disabled: the stream no longer allows this kind of batch.
    """

    def __init__(self, pipeline: PipelinedPublisher, *, last_seq: int) -> None:
        self.last_seq = last_seq
        self.interleaved_at = float("-inf")
        self.disabled = False
        self._pipeline = pipeline
        self._turn = asyncio.Lock()

    async def send(
        self, batcher: BatchSender, messages: Sequence[EncodedMessage], deadline: float
    ) -> list[PublishOutcome]:
        """Make one attempt for each message up to the first that is not stored."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            return [Unsent("the deadline passed before its turn")] * len(messages)
        try:
            outcomes: list[PublishOutcome] = []
            # Among others, a known id ends an atomic batch, and is silently skipped in a fast one.
            for chunk in split(messages, _BATCH_MESSAGES, repeats_alone=True):
                outcomes += await self._chunk(batcher, chunk, deadline)
                if not all_stored(outcomes):
                    break
        finally:
            self._turn.release()
        return outcomes + [HELD_BACK] * (len(messages) - len(outcomes))

    async def _chunk(
        self, batcher: BatchSender, chunk: Sequence[EncodedMessage], deadline: float
    ) -> list[PublishOutcome]:
        if len(chunk) == 1:
            return await self._one_by_one(chunk, deadline)
        known = self.last_seq  # read before the batch, because other writers may store meanwhile
        result = await batcher.send(chunk, deadline)
        self.disabled = self.disabled or result.disabled
        outcomes = await self._with_sequences(chunk[: result.stored], result, known, deadline)
        if result.stored == len(chunk) or not all_stored(outcomes):
            return outcomes
        rest = await self._one_by_one(chunk[result.stored :], deadline)
        possibly_published, sent = Unknown(result.trouble), result.sent - result.stored
        return outcomes + [
            possibly_published if index < sent and isinstance(outcome, Unsent) else outcome
            for index, outcome in enumerate(rest)
        ]

    async def _with_sequences(
        self, stored: Sequence[EncodedMessage], result: BatchResult, known: int, deadline: float
    ) -> list[PublishOutcome]:
        """Return the stored messages with their sequences.

        The sequences are consecutive if nobody else stored between ``known``, the stream's last sequence
        before the batch, and the batch's last sequence. Otherwise each message is sent again: the stream
        knows its id and acknowledges it with the sequence of the first copy. For example, with ``known`` 10:

            3 stored, last sequence 13   11, 12, 13
            3 stored, last sequence 14   another writer stored one in between: send all three again
        """
        if not stored:
            return []
        self.last_seq = result.last_seq
        first = result.last_seq - len(stored) + 1
        stream = result.stream
        if result.unbroken or first == known + 1:
            return [Stored(stream, seq) for seq in range(first, result.last_seq + 1)]
        self.interleaved_at = asyncio.get_running_loop().time()
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
        return outcomes + [HELD_BACK] * (len(messages) - len(outcomes))


def all_stored(outcomes: Sequence[PublishOutcome]) -> bool:
    return all(isinstance(outcome, Stored) for outcome in outcomes)
