"""Report the progress of Spark's long stages."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.session import spark_context

PERIOD_SECONDS = 10.0

_Stages = list[tuple[int, int, int]]
"""(number, finished tasks, all tasks) of the running stages."""


@contextmanager
def stage_progress(
    spark: SparkSession, report: Callable[[str], None], *, seconds: float = PERIOD_SECONDS
) -> Iterator[None]:
    """Report the running stages of the block every ``seconds``; ``report`` is called in another thread."""
    running, ended = _running_stages(spark), threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            if stages := running():
                texts = (f"stage {number}: {done:,} of {tasks:,} tasks" for number, done, tasks in stages)
                report(f"spark: {', '.join(texts)}")

    thread = threading.Thread(target=repeat, name="stage progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _running_stages(spark: SparkSession) -> Callable[[], _Stages]:
    if (context := spark_context(spark)) is not None:
        tracker = context.statusTracker()
        return lambda: [
            (stage.stageId, stage.numCompletedTasks, stage.numTasks)
            for stage in map(tracker.getStageInfo, tracker.getActiveStageIds())
            if stage
        ]
    latest: _Stages = []

    def keep(stages: Iterable[Any] | None, **_: object) -> None:
        running = (stage for stage in stages or () if not stage.done)
        latest[:] = [(stage.stage_id, stage.num_completed_tasks, stage.num_tasks) for stage in running]

    spark.registerProgressHandler(keep)  # type: ignore[arg-type] # any function with these arguments
    return lambda: latest
