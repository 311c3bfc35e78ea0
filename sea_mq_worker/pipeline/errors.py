"""What goes wrong in the pipeline alone; the worker's own errors are used for everything else."""

import re

from sea_mq_worker.domain.errors import WorkerError


class PipelineError(WorkerError):
    """A job cannot go on; its text says what to do."""


class DataLossError(PipelineError):
    """Data that was to be read is no longer there, or is not what it was: nothing was skipped in silence."""


_RAISED = re.compile(r"^(?:Caused by: |: )?((?:\w+\.)+[\w$]+|\w+(?:Error|Exception)): (.*)$", re.MULTILINE)


def cause(error: Exception) -> tuple[str, str]:
    """Return the class and the text of what lies at the bottom of Spark's error, be it Python's or Java's."""
    found = _RAISED.findall(str(error))
    if found:
        name, text = found[-1]
        return name, text
    lines = str(error).split("\n")
    return type(error).__name__, next(filter(str.strip, lines), "failed")
