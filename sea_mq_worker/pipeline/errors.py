"""Errors of the pipeline, and the translation of Spark's errors into the errors that caused them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sea_mq_worker.errors import BrokerUnavailableError, ContractError, StoreUnavailableError, WorkerError
from sea_mq_worker.settings import SettingsError


class PipelineError(WorkerError):
    """A job cannot continue; the text states what to do."""


class DataLossError(PipelineError):
    """Data to be read was deleted or has changed; nothing was skipped silently."""


_KINDS = (BrokerUnavailableError, ContractError, DataLossError, SettingsError, StoreUnavailableError)
_OWN = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _KINDS}
_RAISED = re.compile(r"^(?:Caused by: |: )?((?:\w+\.)+[\w$]+|\w+(?:Error|Exception)): (.*)$", re.MULTILINE)
_OF_POSTGRES = re.compile(r"org\.postgresql\.util\.PSQLException: (?:(ERROR|FATAL): )?(.*)")
_REFUSED_LOGIN = re.compile(r"authentication|password|does not exist|permission denied|pg_hba")
_ENDING = re.compile(r"terminating|the database system|canceling|too many|remaining connection|recovery")


@contextmanager
def translated() -> Iterator[None]:
    """Raise the error of a task as if it was raised here; of other Spark errors, raise only the cause.

    Raises:
        WorkerError: replaces Spark's error.
        SettingsError: an executor's settings are wrong.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if found := _OF_POSTGRES.findall(str(error)):
            raise _of_postgres(*found[-1]) from error
        name, text = cause(error)
        if name in _OWN:
            raise _OWN[name](text) from error
        package, _, kind = name.rpartition(".")
        raise PipelineError(
            text if package.startswith("sea_mq_worker") else f"Spark: {kind}: {text}"
        ) from error


def cause(error: Exception) -> tuple[str, str]:
    """Return the class and the text of the root cause of Spark's error, in Python or in Java."""
    if found := _RAISED.findall(str(error)):
        name, text = found[-1]
        return name, text
    return type(error).__name__, next(filter(str.strip, str(error).split("\n")), "failed")


def _of_postgres(severity: str, text: str) -> WorkerError:
    """Return the error that a text of PostgreSQL's JDBC driver means; it has no SQLSTATE."""
    if "snapshot" in text:
        return PipelineError(
            f"PostgreSQL: {text}: the session that holds the snapshot has ended (a restart, a lost"
            " connection, or the job closed it before its last action); run the job again"
        )
    if not severity or _ENDING.search(text):
        return StoreUnavailableError(f"PostgreSQL cannot be reached: {text}")
    if severity == "FATAL" and not _REFUSED_LOGIN.search(text):
        return StoreUnavailableError(f"PostgreSQL: {text}")
    missing = severity == "ERROR" and text.endswith("does not exist")
    return ContractError(f"PostgreSQL: {text}{'; run `python -m sea_mq_worker migrate`' if missing else ''}")
