"""Calls that outlast an outage of their dependency."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, Permit
from sea_mq_worker.application.waiting import StoppedError
from sea_mq_worker.domain.errors import DependencyError, FinalError, RowsRefusedError

_T = TypeVar("_T")


async def call_when_available(
    call: Callable[[], Awaitable[_T]], *, breaker: CircuitBreaker, stop: asyncio.Event
) -> _T:
    """Call until the dependency does it, waiting at its gate in between; the call must bear repeating.

    Raises:
        StoppedError: asked to stop while the dependency was away, or was not what it must be.
        RowsRefusedError: PostgreSQL serves, and refuses a row.
        FinalError: waiting is of no use to this process.
    """
    while await breaker.enter(stop) is not Permit.STOPPED:
        try:
            result = await call()
        except RowsRefusedError:
            breaker.record_success()
            raise
        except FinalError:
            breaker.release()
            raise
        except DependencyError as error:
            breaker.record_exception(error)
        except BaseException:
            breaker.release()  # a probe that has learnt nothing must not keep the others from theirs
            raise
        else:
            breaker.record_success()
            return result
    raise StoppedError(breaker.reason)
