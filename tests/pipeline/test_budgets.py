"""What a run may cost: a number of Spark jobs that does not depend on the rows, and few bytes in shuffles."""

import random
from dataclasses import replace

from tests.pipeline.jetstream_support import Published, Stream
from tests.pipeline.landing import LandedLake, events_of
from tests.pipeline.spark_stages import Work, watched

_SHUFFLED_BYTES_A_ROW = 100
"""An ID and its place; a body of the test has 500 bytes that no compression makes smaller than 250."""

_JOBS = 64
"""Of a run with one batch, those of Delta Lake's own looks at its log included."""


def wide_events(context: str, first: int, last: int) -> list[Published]:
    random.seed(first)
    return [
        replace(each, body=random.randbytes(250).hex().encode()) for each in events_of(context, first, last)
    ]


async def test_landing_shuffles_no_bodies_and_needs_as_many_jobs_for_many_rows_as_for_few(
    lake: LandedLake, stream: Stream
) -> None:
    await stream.publish(wide_events(stream.name, 0, 100))
    await lake.land(stream.name)
    found: list[Work] = []
    for first, last in ((100, 1_100), (1_100, 6_100)):
        await stream.publish(wide_events(stream.name, first, last))
        with watched(lake.spark) as work:
            result = await lake.land(stream.name)
        assert result.rows == result.events == last - first
        found.append(work)
    few, many = found
    assert many.shuffled / 5_000 < _SHUFFLED_BYTES_A_ROW
    assert len(many.jobs) <= len(few.jobs) + 2, (few.jobs, many.jobs)
    assert len(many.jobs) <= _JOBS, many.jobs
