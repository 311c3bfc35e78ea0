"""JSON outputs of the pipeline's commands; docs/reference/cli.schema.json is generated from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sea_mq_worker.outbox.backlog import BacklogCounts
from sea_mq_worker.pipeline.jobs.archive.job import ArchiveResult
from sea_mq_worker.pipeline.jobs.erase.job import EraseResult
from sea_mq_worker.pipeline.jobs.land.job import LandResult
from sea_mq_worker.pipeline.jobs.reconcile.result import Reconciliation, Verdict
from sea_mq_worker.pipeline.jobs.replay.job import ReplayJobResult
from sea_mq_worker.pipeline.jobs.report.model import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOutput(Reconciliation):
    """``failed``: the number of findings of the kinds in ``failed_on``; exit code 1 unless it is 0."""

    failed_on: Sequence[Verdict]
    failed: int


PIPELINE_OUTPUTS: Mapping[str, object] = MappingProxyType(
    {
        "pipeline land": LandResult,
        "pipeline archive": ArchiveResult,
        "pipeline reconcile": ReconcileOutput,
        "pipeline replay": ReplayJobResult,
        "pipeline drain": BacklogCounts,
        "pipeline report": Report,
        "pipeline erase": EraseResult,
    }
)
"""Output type by command; ``land --every`` prints one output for each run that found something."""
