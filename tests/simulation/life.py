"""One run of a worker process, from its start to its end."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from sea_mq_worker.application.supervisor import ExitCode


@dataclass(slots=True, kw_only=True, eq=False)
class Life:
    """A worker's process.

    Attributes:
        number: of this process, from 1; whoever is no worker has 0 or less.
        worker: which of the plan's workers it is; -1 for an operator's process.
        hurt: something outside kept it from finishing its work in order.
        frozen_at: when it was last made to stand still.
    """

    number: int
    worker: int
    name: str
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    dead: bool = False
    hurt: bool = False
    frozen_at: float = -1.0
    code: ExitCode | None = None
    pulls: list[asyncio.Task[Any]] = field(default_factory=list)
    task: asyncio.Task[ExitCode] | None = None
    asked_to_wait: dict[str, float] = field(default_factory=dict)
    calls: int = 0
