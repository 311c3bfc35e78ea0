"""The figures of the pipeline's jobs: medians of the rounds, as a table, as a section and as a picture."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypeAlias

from benchmarks.charts import Bar, Group, chart
from benchmarks.process_tree import PARTS

FLOOR, LAND, NEW_MESSAGES = "floor", "land", "land, new messages"
SERVERS = ("postgres", "nats")
_SERIES = ("driver and Python workers", "JVM", "PostgreSQL and nats-server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The figures of one job in one round.

    Attributes:
        rows: events or messages.
        cpu_seconds: user and system time by part of the job's processes, and by server.
        peak_bytes: most memory that all processes of the job held at once; shared pages count once.
        spark_jobs: number of Spark jobs that were started.
        shuffle_bytes: bytes that tasks wrote for others.
    """

    rows: int
    seconds: float
    cpu_seconds: Mapping[str, float]
    peak_bytes: int
    spark_jobs: int
    shuffle_bytes: int


Round: TypeAlias = dict[str, Figure]
"""The figures of each job, by its name."""


def document(rounds: Mapping[int, Sequence[Round]]) -> dict[str, Any]:
    """Return the medians and every round, by size."""
    return {
        str(count): {
            "median": {job: _median([one[job] for one in results]) for job in results[0]},
            "rounds": [{job: asdict(figure) for job, figure in one.items()} for one in results],
        }
        for count, results in rounds.items()
        if results
    }


def _median(figures: Sequence[Figure]) -> dict[str, Any]:
    def of(value: Callable[[Figure], float]) -> float:
        return median(map(value, figures))

    return {
        "rows": figures[0].rows,
        "seconds": of(lambda one: one.seconds),
        "cpu_seconds": {
            name: of(lambda one, name=name: one.cpu_seconds[name]) for name in (*PARTS, *SERVERS)
        },
        "peak_bytes": of(lambda one: one.peak_bytes),
        "spark_jobs": of(lambda one: one.spark_jobs),
        "shuffle_bytes": of(lambda one: one.shuffle_bytes),
    }


def table(sizes: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Return the medians as the rows of a table, the head first."""
    parts = (*PARTS, *SERVERS)
    yield (
        "job",
        "rows",
        "rounds",
        "seconds",
        "rows/s",
        f"CPU s: {', '.join(parts)}",
        "peak MB",
        "Spark jobs",
        "shuffle, bytes a row",
    )
    for found in sizes.values():
        for job, one in found["median"].items():
            yield (
                job,
                f"{one['rows']:,}",
                str(len(found["rounds"])),
                f"{one['seconds']:,.1f}",
                f"{one['rows'] / one['seconds']:,.0f}",
                ", ".join(f"{one['cpu_seconds'][part]:,.1f}" for part in parts),
                f"{one['peak_bytes'] / 1e6:,.0f}",
                f"{one['spark_jobs']:,.0f}",
                f"{one['shuffle_bytes'] / one['rows']:,.0f}",
            )


def growth(sizes: Mapping[str, Any]) -> str:
    """Draw rate and processor time by the number of rows, job by job."""
    rates: dict[str, list[Bar]] = {}
    costs: dict[str, list[Bar]] = {}
    for size, found in sizes.items():
        for job, one in found["median"].items():
            label = f"{int(size):,}"
            rates.setdefault(job, []).append(_rate(label, one))
            costs.setdefault(job, []).append(_cpu(label, one))
    groups = [
        group
        for job in rates
        if job != NEW_MESSAGES
        for group in (
            Group(title=f"{job}: rows a second", bars=rates[job]),
            Group(title=f"{job}: CPU of a row, microseconds", bars=costs[job]),
        )
    ]
    return chart("The pipeline's jobs by the number of rows", groups, series=_SERIES, one_scale=False)


def _rate(label: str, one: Mapping[str, Any]) -> Bar:
    rate = one["rows"] / one["seconds"]
    return Bar(label=label, parts={_SERIES[0]: rate}, note=f"{rate:,.0f}/s, {one['seconds']:,.1f} s")


def _cpu(label: str, one: Mapping[str, Any]) -> Bar:
    cpu = {name: seconds / one["rows"] * 1e6 for name, seconds in one["cpu_seconds"].items()}
    sums = (cpu["driver"] + cpu["python workers"], cpu["jvm"], sum(cpu[server] for server in SERVERS))
    note = f"{sum(sums):,.0f} us ({' + '.join(f'{each:,.0f}' for each in sums)})"
    return Bar(label=label, parts=dict(zip(_SERIES, sums, strict=True)), note=note)
