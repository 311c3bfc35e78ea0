"""What Spark says of a failure, as the error that lies at the bottom of it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError, StoreUnavailableError
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.settings import SettingsError

_KINDS = (BrokerUnavailableError, ContractError, DataLossError, SettingsError, StoreUnavailableError)
_OWN = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _KINDS}
_RAISED = re.compile(r"^(?:Caused by: |: )?((?:\w+\.)+[\w$]+|\w+(?:Error|Exception)): (.*)$", re.MULTILINE)


@contextmanager
def translated() -> Iterator[None]:
    """Raise what a task raised as if it had been raised here, and the cause alone of what else went wrong.

    Raises:
        WorkerError: in the place of Spark's error.
        SettingsError: an executor's settings are wrong.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        name, text = cause(error)
        if name in _OWN:
            raise _OWN[name](text) from error
        package, _, kind = name.rpartition(".")
        raise PipelineError(
            text if package.startswith("sea_mq_worker") else f"Spark: {kind}: {text}"
        ) from error


def cause(error: Exception) -> tuple[str, str]:
    """Return the class and the text of what lies at the bottom of Spark's error, be it Python's or Java's."""
    found = _RAISED.findall(str(error))
    if found:
        name, text = found[-1]
        return name, text
    lines = str(error).split("\n")
    return type(error).__name__, next(filter(str.strip, lines), "failed")
