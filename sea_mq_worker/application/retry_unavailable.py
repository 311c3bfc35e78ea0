"""Calls that are retried until their dependency is available again."""

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
    """Repeat an idempotent call until it succeeds, waiting at the dependency's circuit in between.

    Raises:
        StoppedError: the worker stopped while the dependency was away or broke its contract.
        RowsRefusedError: PostgreSQL is available and refuses a row.
        FinalError: this process cannot continue, however long it waits.
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
            breaker.release()  # a cancelled probe must not block the probes of other callers
            raise
        else:
            breaker.record_success()
            return result
    raise StoppedError(breaker.reason)
