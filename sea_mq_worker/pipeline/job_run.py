"""Prepare the session of a job's run, and report the run to Spark's web pages and to OpenLineage.

OpenLineage events need the extra ``openlineage``, and a variable of its client in the environment.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake.schemas import TableSchema
from sea_mq_worker.pipeline.lake.table import LakeTable
from sea_mq_worker.pipeline.session import described, job_session
from sea_mq_worker.resources import install_hint
from sea_mq_worker.settings import Settings

_PRODUCER = "urn:sea_mq_worker"
_log = logging.getLogger(__name__)

Dataset: TypeAlias = tuple[str, str]
"""Namespace and name of a data set by the rules of OpenLineage, without credentials."""


def stream_datasets(settings: Settings, names: Iterable[str]) -> list[Dataset]:
    """Return the data sets of streams."""
    server = _server(settings.nats_url.get_secret_value().partition(",")[0])
    return [(f"nats://{server}", name) for name in dict.fromkeys(names)]


def table_datasets(settings: Settings, *names: str) -> list[Dataset]:
    """Return the data sets of tables of the worker's database."""
    url = settings.database_url.get_secret_value()
    return [(f"postgres://{_server(url)}", f"{urlsplit(url).path.strip('/')}.{name}") for name in names]


def lake_datasets(lake: str | None, *schemas: TableSchema) -> list[Dataset]:
    """Return the data sets of tables of a lake, if there is a lake."""
    found = []
    for schema in schemas if lake else ():
        scheme, bucket, path = urlsplit(LakeTable(str(lake), schema).uri)[:3]
        found.append((f"{scheme}://{bucket}", path.strip("/")) if bucket else ("file", path))
    return found


@contextmanager
def job_run(
    spark: SparkSession, settings: Settings, job: str, *, reads: Iterable[Dataset], writes: Iterable[Dataset]
) -> Iterator[SparkSession]:
    """Yield the session that a job uses in place of the given one; raises as ``job_session``, ``lineage``."""
    session = job_session(spark)
    with described(session, job), lineage(job, settings, reads=reads, writes=writes):
        yield session


@contextmanager
def lineage(
    job: str, settings: Settings, *, reads: Iterable[Dataset], writes: Iterable[Dataset]
) -> Iterator[None]:
    """Send START, then COMPLETE or FAIL at the end of the block; a failure to send is logged.

    Raises:
        PipelineError: the client of OpenLineage is not installed.
    """
    client = _client()
    if client is None:
        yield
        return
    from openlineage.client import event_v2, uuid  # noqa: PLC0415 - an extra

    namespace = os.environ.get("OPENLINEAGE_NAMESPACE", settings.context)
    facts: dict[str, Any] = {
        "run": event_v2.Run(str(uuid.generate_new_uuid())),
        "job": event_v2.Job(namespace, f"sea_mq_worker.{job}"),
        "producer": _PRODUCER,
        "inputs": [event_v2.InputDataset(*dataset) for dataset in reads],
        "outputs": [event_v2.OutputDataset(*dataset) for dataset in writes],
    }

    def send(state: event_v2.RunState) -> None:
        event = event_v2.RunEvent(eventType=state, eventTime=datetime.now(UTC).isoformat(), **facts)
        try:
            client.emit(event)
        except Exception as error:  # noqa: BLE001 - each transport has its own errors; the job is more important
            _log.warning("the OpenLineage event %s of %s was not sent: %s", state.value, job, error)

    send(event_v2.RunState.START)
    try:
        yield
    except BaseException:
        send(event_v2.RunState.FAIL)
        raise
    else:
        send(event_v2.RunState.COMPLETE)
    finally:
        client.close()


def _client() -> Any:
    """Return the client of OpenLineage; None if its environment is not set."""
    if not any(name.startswith("OPENLINEAGE_") for name in os.environ):
        return None
    try:
        from openlineage.client import OpenLineageClient  # noqa: PLC0415 - an extra
    except ImportError as error:
        text = f"OPENLINEAGE_* is set, and its client is missing: {install_hint('openlineage')}"
        raise PipelineError(text) from error
    return OpenLineageClient()


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
