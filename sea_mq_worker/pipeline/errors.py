"""What goes wrong in the pipeline alone; the worker's own errors are used for everything else."""

from sea_mq_worker.domain.errors import WorkerError


class PipelineError(WorkerError):
    """A job cannot go on; its text says what to do."""


class DataLossError(PipelineError):
    """Data that was to be read is no longer there, or is not what it was: nothing was skipped in silence."""
