"""An event loop in virtual time whose order is a seed's, and in which one worker can stand still.

What may happen in any order happens in the order that the seed draws. Every callback belongs to the worker in
whose context it was made: while that worker is frozen, its callbacks wait. A killed one is frozen for good,
so not even its `finally` blocks run, as after SIGKILL.
"""

import asyncio
import contextvars
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.support.simulation import VirtualLoop

WORKER: contextvars.ContextVar[int] = contextvars.ContextVar("worker", default=0)
"""The life of a worker that the running code belongs to; 0 is the world around them."""


class _NumberedTask(asyncio.Task[Any]):
    """Hashes to its number, so that sets of tasks have the same order in every run."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SeededLoop(VirtualLoop):
    """Runs one simulation; not for anything that needs a socket or a thread."""

    _ready: Any
    _scheduled: list[Any]
    _stopping: bool

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._tasks: list[tuple[int, asyncio.Task[Any]]] = []
        self._held: dict[int, list[Any]] = {}
        self.steps = 0
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def freeze(self, worker: int) -> None:
        """Hold back every callback of a worker."""
        self._held.setdefault(worker, [])

    def thaw(self, worker: int) -> None:
        """Let a worker go on with all that came in meanwhile."""
        self._ready.extend(self._held.pop(worker, ()))

    def in_world(self, callback: Callable[[], object], *, after: float = 0.0) -> None:
        """Call back as the world, whoever asks for it."""
        self.call_later(after, callback, context=_WORLD)

    def world_task(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of the world, whoever asks for it."""
        return self.create_task(coro, context=_WORLD)

    def tasks_of(self, worker: int) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks that a worker started."""
        return [task for owner, task in self._tasks if owner == worker and not task.done()]

    def clear_away(self) -> None:
        """Cancel whatever is left, dead workers' tasks too, until nothing is."""
        self.set_exception_handler(lambda _loop, _context: None)
        for worker in list(self._held):
            self.thaw(worker)
        for _ in range(_CLEARINGS_MAX):
            left = [task for _, task in self._tasks if not task.done()]
            for task in left:
                task.cancel()
            self.run_until_complete(_turns())
            if not left:
                return
        raise AssertionError("there are tasks that cannot be cancelled")

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task = _NumberedTask(len(self._tasks), coro, loop=loop, **options)
        context = options.get("context")
        self._tasks.append((WORKER.get() if context is None else context.get(WORKER, 0), task))
        return task

    def _run_once(self) -> None:
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        if not self._ready and not self._stopping:
            if not timers:
                raise AssertionError("everybody waits, and nothing will ever happen")
            self._leaping.now = max(self._leaping.now, timers[0].when())
        while timers and timers[0].when() <= self._leaping.now:
            self._ready.append(heapq.heappop(timers))
        batch = list(self._ready)
        self._ready.clear()
        if len(batch) > 1:
            self._random.shuffle(batch)
        for handle in batch:
            if handle.cancelled():
                continue
            held = self._held.get(handle._context.get(WORKER, 0)) if self._held else None
            if held is None:
                self.steps += 1
                handle._run()
            else:
                held.append(handle)


_WORLD = contextvars.copy_context()
_CLEARINGS_MAX = 50


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
