"""One run of a worker process, from its start to its end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sea_mq_worker.runtime.supervisor import ExitCode

if TYPE_CHECKING:
    from tests.simulation.sessions import SessionWire


@dataclass(slots=True, kw_only=True, eq=False)
class Life:
    """A worker's process.

    Attributes:
        number: of this process, from 1; whoever is no worker has 0 or less.
        worker: which of the plan's workers it is; -1 for an operator's process.
        hurt: something outside kept it from finishing its work in order.
        frozen_at: when it was last made to stand still.
        clock: its monotonic clock.
        session: its session in the database, where workers take over from each other.
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
    clock: Callable[[], float] = lambda: 0.0
    session: "SessionWire | None" = None
