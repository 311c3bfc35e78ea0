"""Errors that only the pipeline raises; it uses the worker's errors for everything else."""

from sea_mq_worker.domain.errors import WorkerError


class PipelineError(WorkerError):
    """A job cannot continue; the text states what to do."""


class DataLossError(PipelineError):
    """Data to be read was deleted or has changed; nothing was skipped silently."""
