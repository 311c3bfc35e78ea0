"""Workload: a million events through one worker, whose memory is read after each tenth of them."""

from statistics import linear_regression, median

from benchmarks.counters import Cost, Figure
from benchmarks.drain import OUTBOX_ALONE, STREAM, drain_with
from benchmarks.stage import Stage

_PARTS = 10


async def memory(stage: Stage, *, count: int) -> dict[str, Figure]:
    """Let one worker drain ten backlogs; the stream is emptied in between, the table keeps all events."""
    each = count // _PARTS
    rates, resident = [], {}
    async with stage.run() as run, run.worker(OUTBOX_ALONE) as worker:
        before = await worker.read()
        for part in range(1, _PARTS + 1):
            rates.append((await drain_with(worker, count=each, per_key=0)).rate)
            resident[part * each] = worker.resident_bytes() / 1e6
            await run.stream.purge_stream(STREAM)
        cost = Cost.between(before, await worker.read())
        more = {f"worker after {events:,} events, MB": size for events, size in resident.items()}
        slope = linear_regression(list(resident), list(resident.values())).slope
        more["worker, MB per million events, by least squares"] = slope * 1e6
        return {
            "worker": Figure(
                count=each * _PARTS, rate=median(rates), cost=cost, peak_bytes=worker.peak_bytes(), more=more
            )
        }
