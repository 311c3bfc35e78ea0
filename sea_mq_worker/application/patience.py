"""Calls that outlast an outage of their dependency."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sea_mq_worker.application.gate import Gate, Passage
from sea_mq_worker.application.pacing import StoppedError
from sea_mq_worker.domain.errors import UnavailableError

_T = TypeVar("_T")


async def patiently(call: Callable[[], Awaitable[_T]], *, gate: Gate, stop: asyncio.Event) -> _T:
    """Call until the dependency serves, waiting at its gate in between; the call must bear repeating.

    Raises:
        StoppedError: asked to stop while the dependency was away.
    """
    while await gate.enter(stop) is not Passage.STOPPED:
        try:
            result = await call()
        except UnavailableError as error:
            gate.pause(str(error))
        except BaseException:
            gate.skip()  # a probe that has learnt nothing must not keep the others from theirs
            raise
        else:
            gate.resume()
            return result
    raise StoppedError(gate.reason)
